"""CPU schedule of row dispatches: softmax, norms, plain reductions.

A task is a few domain points (rows). For each row the reductions run in order, vectorised along the
innermost inner loop with several accumulators, then maps over the row are stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.codegen.backend import KernelTarget
from mansard.codegen.kernel import KValue
from mansard.codegen.nest import Nest, Root
from mansard.codegen.schedules import reduce
from mansard.codegen.schedules.base import Frame, Scheduled, choose_lanes, divides, estimate
from mansard.dtypes import DType

WORK = 16384
"""Elements a task should touch."""
ACCUMULATORS = 4
"""Independent vector accumulators: hides the latency of one addition (4 cycles on current cores)."""


def schedule(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """Rows of the domain, several to a task."""
    frame = Frame(nest, target, name)
    b, ev = frame.b, frame.ev
    groups = nest.collapsed(range(nest.domain), [p for root in nest.roots for p in nest.positions(root)])
    rows = nest.total(range(nest.domain))
    inner = max(estimate(nest.total(root.inner)) for root in nest.roots)
    rows_per_task = max(1, WORK // (inner * len(nest.roots)))

    def row() -> None:
        for root in nest.roots:
            if root.reduces:
                reduce_root(frame, root)
            else:
                store_root(frame, root)

    if not groups:
        row()
        return frame.finish((1, 1, 1))
    first = b.mul(b.workgroup_id(0), b.idx(rows_per_task))
    last = frame.minimum(b.add(first, b.idx(rows_per_task)), ev.dim(rows))
    with b.for_(first, last) as loop, ev.scope():
        frame.bind_flat(groups, loop.index)
        row()
    return frame.finish((dims.ceildiv(rows, rows_per_task), 1, 1))


def reduce_root(frame: Frame, root: Root) -> None:
    """Reduce over the inner loops; the result is kept for later roots and stored if it is an output."""
    ev, nest = frame.ev, frame.nest
    groups = nest.collapsed(root.inner, nest.positions(root))
    if root.op.combiner in reduce.ARG:
        result = reduce.arg_reduce(frame, root, groups)
    elif not groups:
        result = reduce.combine(ev, root, reduce.start(frame.b, root))
    else:
        result = _reduce_vectors(frame, root, groups)
    ev.reduced[root.op] = result
    if root.stores:
        ev.store(root.op.output, nest.store_address(root), result)


def _reduce_vectors(frame: Frame, root: Root, groups: Sequence[Sequence[int]]) -> KValue:
    b, ev, nest = frame.b, frame.ev, frame.nest
    *outer, inner = groups
    extent = nest.total(inner)
    lanes = choose_lanes(extent, frame.target.lanes(DType.F32))
    count = ACCUMULATORS if estimate(extent) >= 2 * ACCUMULATORS * lanes else 1
    size = ev.dim(extent)
    exact = divides(extent, lanes * count)
    block = b.idx(lanes * count)
    middle = size if exact else b.sub(size, b.binary("rem", size, block))

    def vectors(carried: Sequence[KValue]) -> Sequence[KValue]:
        *accumulators, rest = carried
        with b.for_(b.idx(0), middle, block, inits=accumulators) as loop:
            updated = []
            for k, accumulator in enumerate(loop.carried):
                with ev.scope():
                    ev.bind(inner, b.add(loop.index, b.idx(k * lanes)))
                    ev.vector = (inner[-1], lanes) if lanes > 1 else None
                    updated.append(reduce.combine(ev, root, accumulator))
            loop.yield_(*updated)
        if exact:
            return [*loop.results, rest]
        with b.for_(middle, size, inits=[rest]) as tail, ev.scope():
            ev.bind(inner, tail.index)
            tail.yield_(reduce.combine(ev, root, tail.carried[0]))
        return [*loop.results, *tail.results]

    inits = [reduce.start(b, root, lanes) for _ in range(count)] + [reduce.start(b, root)]
    *accumulators, rest = reduce.loops(frame, outer, inits, vectors)
    return _join(frame, root, accumulators, rest)


def _join(frame: Frame, root: Root, accumulators: Sequence[KValue], rest: KValue) -> KValue:
    b, combiner = frame.b, root.op.combiner
    assert combiner is not None
    total = accumulators[0]
    for other in accumulators[1:]:
        total = b.binary(combiner, total, other)
    return b.binary(combiner, b.reduce(combiner, total), rest)


def store_root(frame: Frame, root: Root) -> None:
    """Store a map over the row (or one value of the row when it has no inner loops)."""
    b, ev, nest = frame.b, frame.ev, frame.nest
    groups = nest.collapsed(root.inner, nest.positions(root))

    def emit() -> None:
        ev.store(root.op.output, nest.store_address(root), ev.root(root))

    if not groups:
        with ev.scope():
            emit()
        return
    *outer, inner = groups
    extent = nest.total(inner)
    lanes = choose_lanes(extent, frame.target.lanes(DType.F32))

    def row(_: Sequence[KValue]) -> Sequence[KValue]:
        overlap = dims.bounds(extent)[0] >= lanes
        frame.vector_loop(inner, b.idx(0), ev.dim(extent), lanes, divides(extent, lanes), overlap, emit)
        return ()

    reduce.loops(frame, outer, (), row)
