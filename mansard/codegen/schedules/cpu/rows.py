"""CPU schedule of row dispatches: softmax, norms, plain reductions.

A task is a few domain points (rows). For each row the reductions run in order, vectorised along the innermost
inner loop with several accumulators, then maps over the row are stored. Where the elements of a row are
strided and neighbouring rows are contiguous (a softmax over the channels of an image), vectors run across
rows instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, choose_lanes, divides, estimate
from mansard.dtypes import DType

WORK = 16384
"""The desired number of elements per task."""
ACCUMULATORS = 4
"""Independent vector accumulators, which hide the latency of an addition (4 cycles on current cores)."""


def schedule(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """The kernel of a row dispatch; a task has several rows of the domain."""
    frame = Frame(nest, target, name)
    b, ev = frame.b, frame.ev
    groups = nest.collapsed(range(nest.domain), [p for root in nest.roots for p in nest.positions(root)])
    rows = nest.total(range(nest.domain))
    inner = max(estimate(nest.total(root.inner)) for root in nest.roots)
    rows_per_task = max(1, WORK // (inner * len(nest.roots)))
    if groups and is_strided(nest, groups[-1]) and dims.bounds(nest.total(groups[-1]))[0] >= frame.lanes:
        return _strided(frame, groups, max(1, rows_per_task // frame.lanes))

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


def is_strided(nest: Nest, group: Sequence[int]) -> bool:
    """Whether every operand is contiguous or constant along a domain loop, and the rows of some are
    strided."""
    strided = False
    for root in nest.roots:
        inner = nest.collapsed(root.inner, nest.positions(root))
        addresses = [r.address for r in nest.reads(root)]
        if root.stores:
            addresses.append(nest.store_address(root))
        for address in addresses:
            terms = dict(address.terms) if address is not None else {}
            if address is None or terms.get(group[-1], 0) not in (0, 1):
                return False
            strided |= bool(inner) and terms.get(inner[-1][-1], 0) not in (0, 1)
    return strided


def _strided(frame: Frame, groups: Sequence[Sequence[int]], vectors: int) -> Scheduled:
    """Vectors of rows, ``vectors`` per task; the last one of a loop is moved back into range."""
    b, ev, nest, lanes = frame.b, frame.ev, frame.nest, frame.lanes
    *outer, lane = groups
    extent = nest.total(lane)
    count = dims.ceildiv(extent, lanes)
    if outer:
        frame.bind_flat(outer, b.workgroup_id(1))
    first = b.mul(b.workgroup_id(0), b.idx(vectors))
    last = frame.minimum(b.add(first, b.idx(vectors)), ev.dim(count))
    with b.for_(first, last) as loop, ev.scope():
        place = b.mul(loop.index, b.idx(lanes))
        if not divides(extent, lanes):
            place = frame.minimum(place, ev.dim(dims.add(extent, -lanes)))
        ev.bind(lane, place)
        ev.vector = (lane[-1], lanes)
        for root in nest.roots:
            inner = nest.collapsed(root.inner, nest.positions(root))
            if root.reduces:
                result = _reduce_strided(frame, root, inner)
                ev.reduced[root.op] = result
                if root.stores:
                    ev.store(root.op.output, nest.store_address(root), result)
                continue

            def store(_: Sequence[KValue], root: Root = root) -> Sequence[KValue]:
                ev.store(root.op.output, nest.store_address(root), ev.root(root))
                return ()

            reduce.loops(frame, inner, (), store)
    tasks = dims.ceildiv(count, vectors)
    return frame.finish((tasks, nest.total([d for g in outer for d in g]), 1))


def _reduce_strided(frame: Frame, root: Root, inner: Sequence[Sequence[int]]) -> KValue:
    if root.op.combiner in reduce.ARG:
        return reduce.arg_reduce(frame, root, inner, frame.lanes)
    start = reduce.start(frame.b, root, frame.lanes)
    (result,) = reduce.loops(
        frame, inner, [start], lambda carried: [reduce.combine(frame.ev, root, carried[0])]
    )
    return result


def reduce_root(frame: Frame, root: Root) -> None:
    """Reduce over the inner loops; the result is available to later roots and stored if it is an output."""
    ev, nest = frame.ev, frame.nest
    groups = nest.collapsed(root.inner, nest.positions(root))
    if root.op.combiner in reduce.ARG:
        result = _arg_reduce(frame, root, groups)
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


def _arg_reduce(frame: Frame, root: Root, groups: Sequence[Sequence[int]]) -> KValue:
    """Vectors of the best elements with their indices, combined at the end; short or strided rows element by
    element."""
    b, ev, lanes = frame.b, frame.ev, frame.lanes
    reads = [dict(r.address.terms) if r.address is not None else {} for r in frame.nest.reads(root)]
    if len(groups) != 1 or any(terms.get(groups[0][-1], 0) not in (0, 1) for terms in reads):
        return reduce.arg_reduce(frame, root, groups)
    (group,) = groups
    extent = frame.nest.total(group)
    count = 2 if estimate(extent) >= 8 * lanes else 1
    if dims.bounds(extent)[0] < lanes * count or estimate(extent) < 2 * lanes or frame.nest.reads(root) == []:
        return reduce.arg_reduce(frame, root, groups)
    size = ev.dim(extent)
    step = b.idx(lanes * count)
    middle = b.sub(size, b.binary("rem", size, step))
    search = reduce.ArgSearch(frame, root)
    inits = [v for k in range(count) for v in search.start(lanes, k * lanes)]
    with b.for_(b.idx(0), middle, step, inits=inits) as loop:
        after: list[KValue] = []
        for k in range(count):
            with ev.scope():
                place = b.add(loop.index, b.idx(k * lanes))
                ev.bind(group, place)
                ev.vector = (group[-1], lanes)
                value = b.splat(ev.root(root), lanes)
            places = b.add(b.splat(b.cast(place, DType.I64), lanes), b.iota(lanes, DType.I64))
            after.extend(search.step(loop.carried[2 * k], loop.carried[2 * k + 1], value, places))
        loop.yield_(*after)
    best = search.join([(loop.results[2 * k], loop.results[2 * k + 1]) for k in range(count)])
    with b.for_(middle, size, inits=best) as rest, ev.scope():
        ev.bind(group, rest.index)
        place = b.cast(rest.index, DType.I64)
        rest.yield_(*search.step(rest.carried[0], rest.carried[1], ev.root(root), place))
    return rest.results[1]


def _join(frame: Frame, root: Root, accumulators: Sequence[KValue], rest: KValue) -> KValue:
    b, combiner = frame.b, root.op.combiner
    assert combiner is not None
    total = accumulators[0]
    for other in accumulators[1:]:
        total = b.binary(combiner, total, other)
    return b.binary(combiner, b.reduce(combiner, total), rest)


def store_root(frame: Frame, root: Root) -> None:
    """Store a map over the row (or one value of the row if it has no inner loops)."""
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
