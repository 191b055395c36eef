"""CPU schedule of products of bf16 and 8-bit operands with constant weights: tiles of dot instructions.

As `mansard.codegen.schedules.cpu.gemm`, with the weights' panels in groups of two (bf16) or four (8-bit)
reduced positions, side by side; the other operand's group is read as one 32-bit word and broadcast:

    for k in steps of the group: accumulators[r][c] += x[row + r, k:k+group] . panel[c][k:k+group]
"""

from __future__ import annotations

from mansard.codegen.kernel import KValue
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

MIN_ROWS = 8
"""Rows of a tile that hide reading its weights from the second-level cache behind the arithmetic."""


def find(nest: Nest, root: Root, shape: Shape) -> Weights | None:
    """The narrow weights of a contraction in the outer form, where this schedule applies; else None."""
    product = low_precision_product(nest, root)
    if product is None or shape.column is None or not shape.reduced:
        return None
    weights = find_weights(nest, root, shape.column, shape.reduced, WIDTH, product.group)
    if weights is None or weights.panels.columns[0] < WIDTH // 2:
        return None
    inner = shape.reduced[-1]
    other = _other(product, weights)
    if dict(other.address.terms).get(inner[-1]) != 1 or not divides(nest.total(inner), product.group):
        return None
    return None if shape.column[-1] in dict(other.address.terms) else weights


def _other(product: LowPrecisionProduct, weights: Weights) -> DotFactor:
    """The factor that is not the weights."""
    return product.right if product.left.value is weights.value else product.left


def candidates(nest: Nest, shape: Shape, weights: Weights, target: KernelTarget) -> list[Parameters]:
    """Tiles to try, the cheapest by the cost model first."""
    return [tile.parameters() for tile in _tiles(nest, shape, weights, target)]


def _tiles(nest: Nest, shape: Shape, weights: Weights, target: KernelTarget) -> list[RegisterTile]:
    rows = estimate(nest.total(shape.row)) if shape.row else 1
    panels = weights.panels
    candidates = tiles(rows, panels.columns[0], panels.depth // panels.group, target)
    # A vector of weights comes from the second-level cache: it should serve many rows.
    return sorted(candidates, key=lambda tile: tile.rows < min(rows, MIN_ROWS))


def schedule(
    nest: Nest,
    target: KernelTarget,
    name: str,
    shape: Shape,
    weights: Weights,
    parameters: Parameters | None = None,
) -> Scheduled:
    """The kernel of a contraction that `find` takes; ``parameters`` are one of `candidates`."""
    (root,) = (r for r in nest.roots if r.reduces)
    tile = RegisterTile.of(parameters, target) if parameters else _tiles(nest, shape, weights, target)[0]
    return _DotGemm(Frame(nest, target, name), root, shape, weights, tile).run()


class _DotGemm(Gemm):
    def __init__(self, frame: Frame, root: Root, shape: Shape, weights: Weights, tile: RegisterTile) -> None:
        super().__init__(frame, root, shape, weights, tile)
        product = low_precision_product(frame.nest, root)
        assert product is not None
        self.other = _other(product, weights)
        self.word = product.group

    def combine(self, accumulator: KValue, place: KValue) -> KValue:
        """One group of reduced positions folded into the sums of a vector of columns."""
        b, lanes = self.b, accumulator.type.lanes * self.word
        self.ev.vector = None
        word = load_raw(self.ev, self.other, self.word)
        memory = b.bindings[self.ev.binding_of[self.weights.value]]
        repeated = b.shuffle(word, word, tuple(range(self.word)) * accumulator.type.lanes)
        return b.dot(repeated, b.load(memory, place, lanes), accumulator)
