"""Split constants larger than a device's largest buffer into parts.

Before (a head of 8 rows where a buffer holds 5, and an embedding that shares its weights)::

    %y: 1x8xf32 = generic (d0:1, d1:8 | d2:4) add {%x[d0, d2] * %w[d1, d2]}     %w: 8x4 constant
    %e: 3x4xf32 = generic (d0:3, d1:4) {%w{%ids[d0], d1}}

After::

    %y_1: 1x4xf32 = generic (d0:1, d1:4 | d2:4) add {%x[d0, d2] * %w_1[d1, d2]}
    %y_2: 1x4xf32 = generic (d0:1, d1:4 | d2:4) add {%x[d0, d2] * %w_2[d1, d2]}
    %y: 1x8xf32 = generic (d0:1, d1:8) {select(d1 < 4, %y_1{d0, d1}, %y_2{d0, d1 + -4})}
    %e: 3x4xf32 = generic (d0:3, d1:4)
              {select(%ids[d0] < 4, %w_1{%ids[d0], d1}, %w_2{%ids[d0] + -4, d1})}

Each part is a separate constant with its own dispatch; the rows of a constant are split without a copy.
Values computed elementwise from such a constant (dequantised weights) stay in parts until they are reduced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mansard import dims
from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.interpreter.scalar import Array
from mansard.ir.ops import Concat, Generic, Op
from mansard.ir.scalar import Apply, Const, Gather, Index, Scalar, rewrite, walk
from mansard.ir.types import Constant, Linear, TensorType, Value
from mansard.passes.canonical.lower_views import lower_view

ROWS = 64
"""Parts of at least this many rows start at multiples of it, so that vector loads stay aligned."""


def split_large_constants(graph: Graph, limit: int, device: str) -> Graph:
    """Split constants of more than ``limit`` bytes; the same graph if there are none. Raises CompileError
    with the constant, its size, the limit, ``device`` and the op concerned if some reader cannot work on
    parts.
    """
    for value in tuple(graph.constants):
        size = dims.bounds(value.type.bytes)[1]
        if size > limit:
            graph = _cut(graph, value, size, limit, device)
    return graph


def _cut(graph: Graph, value: Value, size: int, limit: int, device: str) -> Graph:
    reasons = []
    for dim, extent in enumerate(value.type.shape):
        assert isinstance(extent, int)
        step = _step(extent, size, limit)
        if step is None:
            continue
        try:
            return _Split(graph, value, dim, step, limit).run()
        except _CannotSplitError as reason:
            reasons.append(str(reason))
    why = reasons[0] if reasons else "no dim of it can be split into parts that fit"
    raise CompileError(
        f"weight {value.name!r} ({graph.constants[value].key}) has {size} bytes, more than the largest "
        f"buffer of {device} ({limit} bytes), and cannot be split over several: {why}"
    )


def _step(extent: int, size: int, limit: int) -> int | None:
    """The extent of a part along a dim: the fewest about equal parts that fit; None if not even one index
    fits."""
    max_step = limit * extent // size
    if max_step < 1 or extent < 2:
        return None
    if max_step >= ROWS:
        max_step -= max_step % ROWS
    count = -(-extent // max_step)
    even = -(-extent // count)
    rounded = -(-even // ROWS) * ROWS
    return rounded if rounded <= max_step else even


class _CannotSplitError(Exception):
    """The reason why an op cannot work on parts."""


@dataclass(frozen=True)
class _Parts:
    """A value in parts along a dim, each with the index at which it starts."""

    dim: int
    values: tuple[Value, ...]
    starts: tuple[int, ...]


class _Split:
    """Splits one constant along one dim, and its readers."""

    def __init__(self, graph: Graph, value: Value, dim: int, step: int, limit: int) -> None:
        self.graph, self.value, self.limit = graph, value, limit
        self.taken = {v.name for v in graph.values()}
        extent = value.type.shape[dim]
        assert isinstance(extent, int)
        self.starts = tuple(range(0, extent, step))
        self.extents = tuple(min(step, extent - start) for start in self.starts)
        self.parts = {value: self._parts(value, dim)}
        self.ops: list[Op] = []

    def run(self) -> Graph:
        """The graph with the constant in parts."""
        source = self.graph.constants[self.value]
        if self.value in self.graph.live_outs():
            raise _CannotSplitError("it is an output of the model")
        constants = {v: c for v, c in self.graph.constants.items() if v is not self.value}
        held = self.parts[self.value]
        for part, start, extent in zip(held.values, held.starts, self.extents, strict=True):
            constants[part] = _piece(self.value, source, held.dim, start, extent)
        for op in self.graph.ops:
            if any(v in self.parts for v in op.inputs):
                self._rewrite_reader(op)
            else:
                self.ops.append(op)
        return self.graph.with_ops(self.ops, constants=constants)

    def _parts(self, value: Value, dim: int) -> _Parts:
        values = []
        for extent in self.extents:
            shape = (*value.type.shape[:dim], extent, *value.type.shape[dim + 1 :])
            values.append(Value(fresh_name(self.taken, value.name), TensorType(shape, value.type.dtype)))
        return _Parts(dim, tuple(values), self.starts)

    def _rewrite_reader(self, op: Op) -> None:
        if not isinstance(op, Generic):
            raise _CannotSplitError(f"{op.name} of {op.outputs[0]}{_location_suffix(op)} needs it contiguous")
        loops = {
            self._loop(op, i) for i, v in enumerate(op.inputs) if v in self.parts and op.maps[i] is not None
        }
        gathered = any(v in self.parts and op.maps[i] is None for i, v in enumerate(op.inputs))
        if gathered and loops:
            raise _CannotSplitError(f"{op.output}{_location_suffix(op)} reads it in two ways")
        if gathered:
            self.ops.append(self._gather(op))
            return
        if len(loops) != 1:
            raise _CannotSplitError(f"{op.output}{_location_suffix(op)} reads it along several loops")
        self._partition(op, loops.pop())

    def _loop(self, op: Generic, operand: int) -> int:
        """The parallel loop of the op that indexes the split dim of an operand with unit stride."""
        index_map = op.maps[operand]
        assert index_map is not None
        at = index_map.results[self.parts[op.inputs[operand]].dim].single
        if at is None or at >= op.rank or index_map.fill is not None:
            raise _CannotSplitError(f"{op.output}{_location_suffix(op)} does not read it row by row")
        return at

    def _partition(self, op: Generic, loop: int) -> None:
        """One op for each part, and the concatenation of their results."""
        held = self._parts(op.output, loop)
        for number, (start, extent) in enumerate(zip(self.starts, self.extents, strict=True)):
            shift = [Linear.dim(d, 1, start if d == loop else 0) for d in range(len(op.extents))]
            inputs, maps = [], []
            for value, index_map in zip(op.inputs, op.maps, strict=True):
                cut = value in self.parts
                inputs.append(self.parts[value].values[number] if cut else value)
                maps.append(index_map if cut or index_map is None else index_map.compose(shift))
            self.ops.append(
                replace(
                    op,
                    inputs=tuple(inputs),
                    outputs=(held.values[number],),
                    maps=tuple(maps),
                    extents=(*op.extents[:loop], extent, *op.extents[loop + 1 :]),
                    body=_shifted(op.body, loop, start),
                )
            )
        large = dims.bounds(op.output.type.bytes)[1] > self.limit
        if large and op.combiner is None and op.output not in self.graph.live_outs():
            self.parts[op.output] = held
            return
        self.ops.append(lower_view(Concat(held.values, (op.output,), loop, location=op.location)))

    def _gather(self, op: Generic) -> Generic:
        """Replace each read at a computed index by one of the part that holds it."""
        inputs, maps = list(op.inputs), list(op.maps)
        places: dict[int, list[int]] = {}
        for i, value in enumerate(op.inputs):
            if value in self.parts:
                first, *others = self.parts[value].values
                inputs[i] = first
                places[i] = [i, *range(len(inputs), len(inputs) + len(others))]
                inputs += others
                maps += [None] * len(others)

        def choose(node: Scalar) -> Scalar:
            if not isinstance(node, Gather) or node.operand not in places:
                return node
            dim = self.parts[op.inputs[node.operand]].dim
            at = node.indices[dim]
            chosen: Scalar | None = None
            for number in reversed(range(len(self.starts))):
                start = self.starts[number]
                indices = (*node.indices[:dim], _plus(at, -start) if start else at, *node.indices[dim + 1 :])
                read = Gather(places[node.operand][number], indices, node.dtype)
                if chosen is None:
                    chosen = read
                    continue
                inside = Apply("lt", (at, Const(self.starts[number + 1], DType.I64)), DType.BOOL)
                chosen = Apply("select", (inside, read, chosen), node.dtype)
            assert chosen is not None
            return chosen

        return replace(op, inputs=tuple(inputs), maps=tuple(maps), body=rewrite(op.body, choose))


def _piece(value: Value, source: Constant, dim: int, start: int, extent: int) -> Constant:
    where = (*(slice(None) for _ in range(dim)), slice(start, start + extent))

    def cut() -> Array:
        return np.ascontiguousarray(load(value, source)[where])

    return Constant(f"{source.key}[{start}:{start + extent}]" + (f" of dim {dim}" if dim else ""), cut)


def _shifted(body: Scalar, loop: int, start: int) -> Scalar:
    if not start or not any(isinstance(n, Index) and n.dim == loop for n in walk(body)):
        return body

    def leaf(node: Scalar) -> Scalar:
        return _plus(node, start) if isinstance(node, Index) and node.dim == loop else node

    return rewrite(body, leaf)


def _plus(index: Scalar, offset: int) -> Scalar:
    return Apply("add", (index, Const(offset, DType.I64)), DType.I64)


def _location_suffix(op: Op) -> str:
    return f" ({op.location.text})" if op.location.text else ""
