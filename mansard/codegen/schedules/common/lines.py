"""The base of kernels over independent lines: scan, sort, scatter and top-k. A *line* is the elements along
the op's axis at one index of the other dims."""

from __future__ import annotations

from collections.abc import Callable

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.positions import Params
from mansard.codegen.schedules.common.base import Grid, Scheduled, index_dtype
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.dispatch import Dispatch
from mansard.ir.types import Value

GPU_WORKGROUP = 64


class Lines:
    """Builds a kernel that runs ``emit(line)`` for each of ``count`` independent lines."""

    def __init__(self, dispatch: Dispatch, target: KernelTarget, name: str, width: int = 0) -> None:
        """``width``: invocations of a workgroup; 0 for the default."""
        self.values = (*dispatch.inputs, *dispatch.outputs)
        self.in_place = dispatch.in_place
        self.params = Params()
        self.target = target
        if not width:
            width = min(GPU_WORKGROUP, target.workgroup_invocations) if target.is_gpu else 1
        self.width = width
        outputs = set(dispatch.outputs)
        self.b = KernelBuilder(
            name,
            [(v.type.dtype, v in outputs) for v in self.values],
            0,
            workgroup=(width, 1, 1),
            index=index_dtype(dispatch, target),
        )

    def dim(self, value: DimLike) -> KValue:
        """A dim expression as an index value."""
        return self.b.idx(value) if isinstance(value, int) else self.b.param(self.params.index(value))

    def load(self, value: Value, index: KValue, lanes: int = 1, *, aligned: bool = False) -> KValue:
        """Elements of a buffer from ``index`` on, converted to their register type."""
        memory = self.b.bindings[self.values.index(value)]
        loaded = self.b.load(memory, index, lanes, aligned=aligned)
        return self.b.cast(loaded, register_dtype(loaded.type.dtype))

    def store(self, value: Value, index: KValue, data: KValue, *, aligned: bool = False) -> None:
        """Write one element of a buffer, or a contiguous vector; nothing for an unused result."""
        if value not in self.values:
            return
        memory = self.b.bindings[self.values.index(value)]
        self.b.store(memory, index, self.b.cast(data, value.type.dtype), aligned=aligned)

    def run(self, count: DimLike, emit: Callable[[KValue], None]) -> Scheduled:
        """The finished kernel: ``emit`` for every line."""
        b = self.b
        if self.width == 1:
            emit(b.workgroup_id(0))
            grid: Grid = (count, 1, 1)
        else:
            groups = dims.minimum(dims.ceildiv(count, self.width), self.target.max_workgroups)
            start = b.add(b.mul(b.workgroup_id(0), b.idx(self.width)), b.local_id(0))
            with b.for_(start, self.dim(count), self.dim(dims.mul(groups, self.width))) as loop:
                emit(loop.index)
            grid = (groups, 1, 1)
        b.params = len(self.params.values)
        return Scheduled(b.build(), tuple(self.params.values), grid)

    def run_workgroups(self, count: DimLike, emit: Callable[[KValue], None]) -> Scheduled:
        """The finished kernel: ``emit`` for every line, by all invocations of a workgroup."""
        b = self.b
        groups = dims.minimum(count, self.target.max_workgroups)
        if dims.bounds(count)[1] <= self.target.max_workgroups:
            emit(b.workgroup_id(0))
        else:
            with b.for_(b.workgroup_id(0), self.dim(count), self.dim(groups)) as loop:
                emit(loop.index)
        b.params = len(self.params.values)
        return Scheduled(b.build(), tuple(self.params.values), (groups, 1, 1))


def running_dtype(target: KernelTarget, combiner: str, dtype: DType) -> DType:
    """The type in which values of ``dtype`` are combined along a line.

    Sums and products of floats are kept in f64, as PyTorch keeps them on a CPU, so that a prefix beyond f32
    does not make those after it infinite; devices without f64 keep them in f32.
    """
    if not dtype.is_float or combiner not in ("add", "mul"):
        return dtype
    return DType.F64 if not target.is_gpu or "float64" in target.features else dtype


def line_base(lines: Lines, line: KValue, inner: DimLike, length: DimLike) -> KValue:
    """Position of a line's first element: lines run along an axis of ``length`` with stride ``inner``."""
    b = lines.b
    if dims.is_one(inner):
        return b.mul(line, lines.dim(length))
    size = lines.dim(inner)
    outer = b.binary("div", line, size)
    return b.add(b.mul(outer, lines.dim(dims.mul(inner, length))), b.binary("rem", line, size))
