"""CPU schedule of products of bf16 and 8-bit operands with constant weights, by dot-product instructions.

As `mansard.codegen.schedules.cpu.gemm`, with the weights' panels in contiguous groups of two (bf16) or four
(8-bit) reduced positions; the other operand's group is loaded as one 32-bit word and broadcast:

    for k in steps of the group: accumulators[r][c] += x[row + r, k:k+group] . panel[c][k:k+group]

A window without padding is such a product too: its rows overlap. The innermost run of positions (the taps
along a row, or these and the channels) may end within a group, if what is read beyond it lies in the buffer:
zeros among the weights take it out of the sum again.
"""

from __future__ import annotations

from dataclasses import replace

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.ir import Memory
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.common.contraction import Shape
from mansard.codegen.schedules.common.dot_products import (
    DotFactor,
    LowPrecisionProduct,
    load_raw,
    low_precision_product,
)
from mansard.codegen.schedules.cpu.gemm import Gemm
from mansard.codegen.schedules.cpu.gemm_tile import WIDTH, RegisterTile, tiles
from mansard.codegen.schedules.cpu.packed_weights import Weights, find_weights
from mansard.ir.types import Value

MIN_ROWS = 8
"""The minimum rows of a tile with which arithmetic hides reading its weights from the second-level cache."""


def arranged(nest: Nest, root: Root, shape: Shape) -> Shape:
    """The shape with the reduced loop innermost along which bytes lie side by side: their sums are exact in
    any order."""
    product = low_precision_product(nest, root)
    if product is None or product.group != 4 or shape.form != "outer":
        return shape
    for group in shape.reduced[:-1]:
        steps = [dict(f.address.terms).get(group[-1], 0) for f in (product.left, product.right)]
        others = [dict(f.address.terms).get(shape.reduced[-1][-1], 0) for f in (product.left, product.right)]
        if 1 in steps and 1 not in others:
            reduced = [g for g in shape.reduced if g is not group]
            return replace(shape, reduced=[*reduced, group])
    return shape


def find(nest: Nest, root: Root, shape: Shape) -> Weights | None:
    """The low-precision weights of a contraction in the outer form (`arranged`) if this schedule applies,
    otherwise None."""
    product = low_precision_product(nest, root)
    if product is None or shape.column is None or not shape.reduced:
        return None
    weights = find_weights(nest, root, shape.column, shape.reduced, WIDTH, product.group)
    if weights is None or weights.panels.columns[0] < WIDTH // 2:
        return None
    inner = shape.reduced[-1]
    other = other_factor(product, weights.value)
    if dict(other.address.terms).get(inner[-1]) != 1 or shape.column[-1] in dict(other.address.terms):
        return None
    if not divides(nest.total(inner), product.group):
        beyond = weights.panels.run - weights.panels.reduced[-1][0]
        if product.group != 4 or not _reads_inside(nest, other, beyond):
            return None
    return weights


def _reads_inside(nest: Nest, factor: DotFactor, beyond: int) -> bool:
    """Whether so many elements behind the last that a factor reads are in its buffer."""
    last, size = factor.address.offset, factor.value.type.elements
    for loop, step in factor.address.terms:
        last = dims.add(last, dims.mul(step, dims.add(nest.extents[loop], -1)))
    return dims.bounds(dims.add(size, -1 - beyond, dims.mul(last, -1)))[0] >= 0


def other_factor(product: LowPrecisionProduct, weights: Value) -> DotFactor:
    """The factor that is not the weights."""
    return product.right if product.left.value is weights else product.left


def candidates(nest: Nest, shape: Shape, weights: Weights, target: KernelTarget) -> list[Parameters]:
    """Tiles to try, in order of predicted cost."""
    return [tile.parameters() for tile in ordered_tiles(nest, shape, weights, target)]


def ordered_tiles(nest: Nest, shape: Shape, weights: Weights, target: KernelTarget) -> list[RegisterTile]:
    """Tiles to try, in order of predicted cost."""
    rows = estimate(nest.total(shape.row)) if shape.row else 1
    panels = weights.panels
    candidates = tiles(rows, panels.columns[0], panels.depth // panels.group, target)
    # A vector of weights comes from the second-level cache: it should be used for many rows.
    return sorted(candidates, key=lambda tile: tile.rows < min(rows, MIN_ROWS))


def schedule(
    nest: Nest,
    target: KernelTarget,
    name: str,
    shape: Shape,
    weights: Weights,
    parameters: Parameters | None = None,
) -> Scheduled:
    """The kernel of a contraction that `find` accepts; ``parameters`` is one of `candidates`."""
    (root,) = (r for r in nest.roots if r.reduces)
    tile = (
        RegisterTile.of(parameters, target) if parameters else ordered_tiles(nest, shape, weights, target)[0]
    )
    return DotGemm(Frame(nest, target, name), root, shape, weights, tile).run()


class DotGemm(Gemm):
    """The kernel of a low-precision product with packed weights under construction."""

    def __init__(self, frame: Frame, root: Root, shape: Shape, weights: Weights, tile: RegisterTile) -> None:
        super().__init__(frame, root, shape, weights, tile)
        product = low_precision_product(frame.nest, root)
        assert product is not None
        self.other = other_factor(product, weights.value)
        self.word = product.group
        self.memory: Memory = self.b.bindings[self.ev.binding_of[weights.value]]
        """Of the panels."""

    def combine(self, accumulator: KValue, place: KValue) -> KValue:
        """The sums of a vector of columns plus one group of reduced positions."""
        b, lanes = self.b, accumulator.type.lanes * self.word
        self.ev.vector = None
        word = load_raw(self.ev, self.other, self.word)
        repeated = b.shuffle(word, word, tuple(range(self.word)) * accumulator.type.lanes)
        return b.dot(repeated, b.load(self.memory, place, lanes), accumulator)
