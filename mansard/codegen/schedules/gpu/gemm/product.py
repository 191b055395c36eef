"""Analysis of a contraction as a matrix product: which loops are rows, columns, batches and the depth.

``result[batch, row, column] = sum over depth of left[batch, row, depth] * right[batch, depth, column]``
where each of these is one or several loops. A convolution is a matrix product too: its rows are pixels, its
depth is the window times the input channels, and padding is a property of one factor's reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.loop_nest import Nest, Read, Root
from mansard.codegen.schedules.common import contraction
from mansard.codegen.schedules.common.base import divides
from mansard.codegen.schedules.common.contraction import Group
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.scalar import Apply, Cast, Gather, Scalar, walk
from mansard.ir.types import Linear

LANES = 4
"""Elements of the widest access: 128 bits of f32."""


@dataclass(frozen=True)
class Factor:
    """One factor of the product: a matrix of rows or columns (its *side*) by the depth. ``groups`` and
    ``depth`` are these loops, flattened as far as its reads allow. ``along`` is the contiguous direction in
    memory ("side" or "depth"), ``lanes`` the number of elements of a load.
    """

    part: Scalar
    groups: list[Group]
    depth: list[Group]
    extent: DimLike
    along: str
    lanes: int


@dataclass(frozen=True)
class Product:
    """A root as a matrix product. Results are contiguous along the columns."""

    root: Root
    left: Factor
    right: Factor
    batch: list[Group]
    rows: list[Group]
    """Loops of the rows, flattened as far as stores and epilogue allow."""
    columns: list[Group]
    depth: DimLike


def analyse(nest: Nest, *, gathers: bool = False) -> Product | None:
    """The matrix product that a nest computes; None if it is not one, or if one side is a single row. Both
    factors must have data-independent addresses, and be computed in 32 bits. With ``gathers``, a factor may
    be a matrix at a place that is computed for each batch, or what is read of several such places.
    """
    if not contraction.applies(nest):
        return None
    (root,) = (r for r in nest.roots if r.reduces)
    return analyse_root(nest, root, gathers=gathers)


def analyse_root(nest: Nest, root: Root, *, gathers: bool = False) -> Product | None:
    """`analyse` for one of the reductions of a nest."""
    body = root.op.body
    if root.op.combiner != "add" or not isinstance(body, Apply) or body.op != "mul":
        return None
    if register_dtype(body.dtype) not in (DType.F32, DType.I32):
        return None
    factors = [nest.part_reads(root, arg) for arg in body.args]
    computed: list[Linear] = []
    for i, (reads, uses) in enumerate(factors):
        if any(read.address is None for read in reads):
            found = [node for node in walk(body.args[i]) if isinstance(node, Gather)] if gathers else []
            others = [read for read in reads if read.address is not None]
            if len(others) + len(found) < len(reads):
                return None  # some are in other ops
            for gather in found:
                at = nest.computed_place(root.op, gather, root.index)
                others.append(Read(nest.buffer(root.op.inputs[gather.operand]), at.affine))
                computed += at.positions
                uses = [*uses, *at.positions]
            factors[i] = others, uses
    positions = [_positions(reads, uses) for reads, uses in factors]
    walked = [{loop for p in group for loop, _ in p.terms} for group in positions]
    domain = [loop for loop in range(nest.domain) if not dims.is_one(nest.extents[loop])]
    sides = [[loop for loop in domain if loop in walked[i] - walked[1 - i]] for i in range(2)]
    depth = nest.total(root.inner)
    if not all(sides) or dims.is_one(depth):
        return None
    if {loop for at in computed for loop, _ in at.terms} & {*sides[0], *sides[1], *root.inner}:
        return None
    stores = [nest.store_address(r) for r in nest.roots if r.stores]
    innermost = {loop for loop, step in stores[0].terms if dims.is_one(step)}
    first, second = (1, 0) if innermost & set(sides[0]) else (0, 1)
    after = [*stores, *(p for r in nest.roots if not r.reduces for p in nest.positions(r))]
    both = [*after, *positions[0], *positions[1]]
    return Product(
        root,
        _factor(nest, root, body.args[first], sides[first], factors[first][0], positions[first]),
        _factor(nest, root, body.args[second], sides[second], factors[second][0], positions[second]),
        nest.collapsed([loop for loop in domain if loop not in (*sides[0], *sides[1])], both),
        nest.collapsed(sides[first], after),
        nest.collapsed(sides[second], after),
        depth,
    )


def gather_of(part: Scalar) -> Gather | None:
    """The gather that a factor is, but for a cast."""
    node = part.arg if isinstance(part, Cast) else part
    return node if isinstance(node, Gather) else None


def _positions(reads: Sequence[Read], uses: Sequence[Linear]) -> list[Linear]:
    addresses = [r.address for r in reads if r.address is not None]
    return [*addresses, *(at for r in reads for at, _ in r.guards), *uses]


def _factor(
    nest: Nest,
    root: Root,
    part: Scalar,
    loops: Sequence[int],
    reads: Sequence[Read],
    positions: Sequence[Linear],
) -> Factor:
    groups, depth = nest.collapsed(loops, positions), nest.collapsed(root.inner, positions)
    extent = nest.total(loops)
    for along, group in (("side", groups[-1]), ("depth", depth[-1])):
        if _contiguous(reads, group):
            whole = divides(nest.total(group), LANES) and not _guarded(reads, group)
            return Factor(part, groups, depth, extent, along, LANES if whole else 1)
    return Factor(part, groups, depth, extent, "side", 1)


def _contiguous(reads: Sequence[Read], group: Group) -> bool:
    steps = [dict(r.address.terms).get(group[-1], 0) for r in reads if r.address is not None]
    return all(step in (0, 1) for step in steps) and 1 in steps


def _guarded(reads: Sequence[Read], group: Group) -> bool:
    """Whether neighbours along a loop may differ in being in range of their operand."""
    return any(loop == group[-1] for r in reads for at, _ in r.guards for loop, _ in at.terms)
