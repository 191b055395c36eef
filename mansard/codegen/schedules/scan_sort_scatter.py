"""Generic schedules of the ops that are not loop nests: scan, sort, scatter. One invocation processes each
independent line sequentially, on any device; targets have specialised schedules for cases in which these are
slow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.math import neutral
from mansard.codegen.schedules.common.base import Scheduled
from mansard.codegen.schedules.common.lines import Lines, line_base, running_dtype
from mansard.codegen.schedules.cpu import topk
from mansard.codegen.schedules.gpu.lines import scan as gpu_scan
from mansard.codegen.schedules.gpu.lines import scatter as gpu_scatter
from mansard.codegen.schedules.gpu.lines import sort as gpu_sort
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Op, Reshape, Scan, Scatter, Sort
from mansard.ir.producers import base_of
from mansard.ir.types import Value


def schedule(dispatch: Dispatch, target: KernelTarget, name: str) -> Scheduled:
    """The kernel of a dispatch with one Scan, Sort or Scatter."""
    (op,) = (op for op in dispatch.ops if not isinstance(op, Reshape))
    base = functools.partial(base_of, producers={v: op for op in dispatch.ops for v in op.outputs})
    if target.is_gpu:
        if isinstance(op, Sort) and gpu_sort.applies(op, target):
            return gpu_sort.schedule(dispatch, target, name, op, base)
        if isinstance(op, Scan) and gpu_scan.applies(op):
            return gpu_scan.schedule(dispatch, target, name, op, base)
        if isinstance(op, Scatter) and gpu_scatter.applies(dispatch, op, target):
            return gpu_scatter.schedule(dispatch, target, name, op, base)
    lines = Lines(dispatch, target, name)
    if isinstance(op, Sort) and not target.is_gpu and topk.applies(op):
        return topk.schedule(lines, op, base)
    makers: dict[type[Op], Callable[..., Scheduled]] = {Scan: _scan, Sort: _sort, Scatter: _scatter}
    if type(op) not in makers:
        raise CodegenError(f"no schedule for op {op.name!r}")
    return makers[type(op)](lines, op, base)


def _scan(lines: Lines, op: Scan, base: Callable[[Value], Value]) -> Scheduled:
    b, source, target = lines.b, base(op.inputs[0]), op.output
    shape = op.inputs[0].type.shape
    length, inner = shape[op.axis], dims.product(shape[op.axis + 1 :])
    outer = dims.product(shape[: op.axis])
    dtype = running_dtype(lines.target, op.combiner, register_dtype(source.type.dtype))

    def line(number: KValue) -> None:
        first = line_base(lines, number, inner, length)
        start = b.const(neutral(op.combiner, dtype), dtype)
        with b.for_(b.idx(0), lines.dim(length), inits=[start]) as loop:
            place = b.add(first, b.mul(loop.index, lines.dim(inner)))
            value = b.cast(lines.load(source, place), dtype)
            total = b.binary(op.combiner, loop.carried[0], value)
            lines.store(target, place, total if op.inclusive else loop.carried[0])
            loop.yield_(total)

    return lines.run(dims.mul(outer, inner), line)


def _sort(lines: Lines, op: Sort, base: Callable[[Value], Value]) -> Scheduled:
    """Rank sort: each element counts those that sort before it, which is its index. Stable, and independent
    per element."""
    b, source = lines.b, base(op.inputs[0])
    values, order = op.outputs
    shape = op.inputs[0].type.shape
    length, inner = shape[op.axis], dims.product(shape[op.axis + 1 :])
    kept = values.type.shape[op.axis]

    def precedes(x: KValue, y: KValue) -> KValue:
        return topk.precedes(b, x, y, op.descending)

    def element(number: KValue) -> None:
        # number runs over (outer, position, inner) in memory order, so it is the element's address.
        size = lines.dim(inner)
        position = b.binary("rem", b.binary("div", number, size), lines.dim(length))
        first = b.sub(number, b.mul(position, size))
        mine = lines.load(source, number)
        with b.for_(b.idx(0), lines.dim(length), inits=[b.idx(0)]) as loop:
            other = lines.load(source, b.add(first, b.mul(loop.index, size)))
            tie = b.binary(
                "and", b.compare("lt", loop.index, position), b.unary("not", precedes(mine, other))
            )
            before = b.binary("or", precedes(other, mine), tie)
            loop.yield_(b.add(loop.carried[0], b.cast(before, b.index)))
        rank = loop.results[0]
        with b.if_(b.compare("lt", rank, lines.dim(kept))):
            line = b.binary("div", number, lines.dim(dims.mul(inner, length)))
            start = b.add(b.mul(line, lines.dim(dims.mul(inner, kept))), b.binary("rem", number, size))
            place = b.add(start, b.mul(rank, size))
            lines.store(values, place, mine)
            lines.store(order, place, b.cast(position, DType.I64))

    return lines.run(op.inputs[0].type.elements, element)


def _scatter(lines: Lines, op: Scatter, base: Callable[[Value], Value]) -> Scheduled:
    """One line per element of the target's inner slice: copies its column, then applies the rows in order. In
    place, nothing is copied.
    """
    b = lines.b
    target, indices, updates = (base(v) for v in op.inputs)
    shape = op.inputs[0].type.shape
    rows, keys = op.inputs[1].type.shape
    assert isinstance(keys, int)
    outer, inner = dims.product(shape[:keys]), dims.product(shape[keys:])

    def copy(number: KValue) -> None:
        with b.for_(b.idx(0), lines.dim(outer)) as loop:
            place = b.add(b.mul(loop.index, lines.dim(inner)), number)
            lines.store(op.output, place, lines.load(target, place))

    def line(number: KValue) -> None:
        if target not in lines.in_place:
            copy(number)
        with b.for_(b.idx(0), lines.dim(rows)) as row:
            inside = b.const(True, DType.BOOL)
            flat = b.idx(0)
            for k in range(keys):
                key = lines.load(indices, b.add(b.mul(row.index, b.idx(keys)), b.idx(k)))
                extent = b.cast(lines.dim(shape[k]), DType.I64)
                valid = b.binary(
                    "and",
                    b.compare("ge", key, b.const(0, DType.I64)),
                    b.compare("lt", key, extent),
                )
                inside = b.binary("and", inside, valid)
                flat = b.add(b.mul(flat, lines.dim(shape[k])), b.cast(key, b.index))
            with b.if_(inside):
                place = b.add(b.mul(flat, lines.dim(inner)), number)
                update = lines.load(updates, b.add(b.mul(row.index, lines.dim(inner)), number))
                if op.combiner is not None:
                    update = b.binary(op.combiner, lines.load(op.output, place), update)
                lines.store(op.output, place, update)

    return lines.run(inner, line)
