"""Merge and remove views, before and after lowering.

Before::

    %a: 2x3xf32 = reshape %x
    %b: 6xf32 = reshape %a
    %c: 6xf32 = slice %b offsets [0] strides [1]
    %d: 6x1xf32 = generic (d0:6, d1:1) {%c[d0]}

After::

    %b: 6xf32 = reshape %x
    %d: 6x1xf32 = reshape %b

A reshape of a constant is a constant of the new shape over the same data; a copy that keeps the row-major
order of its elements is a reshape, or removed.
"""

from __future__ import annotations

from dataclasses import replace

from mansard import dims
from mansard.analysis.linear import delinearize, over_loops
from mansard.analysis.loops import linearize
from mansard.analysis.operands import copied, is_copy, renamed
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Concat, Generic, Op, Pad, Reshape, Slice
from mansard.ir.types import Constant, Linear, Value


def simplify_views(graph: Graph) -> Graph:
    """Remove views without effect and merge chains of views; the same graph if there are none."""
    return _Views(graph).run()


class _Views:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[Value, Value] = {}
        self.constants = dict(graph.constants)
        self.producers: dict[Value, Op] = {}

    def run(self) -> Graph:
        ops: list[Op] = []
        changed = False
        for old in self.graph.ops:
            new = self._visit(renamed(old, self.names))
            changed |= new is not old
            if new is not None:
                ops.append(new)
                self.producers.update(dict.fromkeys(new.outputs, new))
        if not changed:
            return self.graph
        return self.graph.with_ops(ops, self.names, constants=self.constants)

    def _visit(self, op: Op) -> Op | None:
        """The replacement of ``op``; None if its result was replaced by another value."""
        match op:
            case Slice() if op.output.type == op.inputs[0].type and all(s == 1 for s in op.strides):
                return self._replace_by(op, op.inputs[0])
            case Pad() if all(n == 0 for n in (*op.low, *op.high)):
                return self._replace_by(op, op.inputs[0])
            case Concat():
                return self._concat(op)
            case Generic() if is_copy(op) and keeps_order(op):
                return self._reshape(Reshape((copied(op)[0],), op.outputs, location=op.location))
            case Reshape():
                return self._reshape(op)
            case _:
                return op

    def _replace_by(self, op: Op, value: Value) -> Op | None:
        self.names[op.output] = value
        return None

    def _concat(self, op: Concat) -> Op | None:
        parts = tuple(v for v in op.inputs if v.type.shape[op.axis] != 0)
        if len(parts) == 1:
            return self._replace_by(op, parts[0])
        return op if len(parts) in (0, len(op.inputs)) else replace(op, inputs=parts)

    def _reshape(self, op: Reshape) -> Op | None:
        source = op.inputs[0]
        if isinstance(inner := self.producers.get(source), Reshape):
            source = inner.inputs[0]
        if source.type.shape == op.output.type.shape:
            return self._replace_by(op, source)
        if source in self.constants and all(isinstance(d, int) for d in op.output.type.shape):
            self.constants[op.output] = reshaped_constant(source, self.constants[source], op.output)
            return None
        if isinstance(filled := self.producers.get(source), Generic) and not filled.inputs:
            generated = _reshaped_generic(filled, op)
            if generated is not None:
                return generated
        return op if source is op.inputs[0] else replace(op, inputs=(source,))


def reshaped_constant(source: Value, constant: Constant, result: Value) -> Constant:
    """``constant`` in the shape of ``result``, sharing its memory."""
    shape = result.type.concrete({})
    return Constant(constant.key, lambda: load(source, constant).reshape(shape))


def keeps_order(op: Generic) -> bool:
    """Whether a copy keeps every element of its operand at its row-major position."""
    value, index_map = copied(op)
    if value.type.elements != op.output.type.elements:
        return False
    read = linearize(index_map.results, value.type.shape)
    written = linearize([Linear.dim(i) for i in range(op.rank)], op.extents)
    return _without_ones(read, op) == _without_ones(written, op)


def _without_ones(flat: Linear, op: Generic) -> Linear:
    return Linear(tuple(t for t in flat.terms if not dims.is_one(op.extents[t[0]])), flat.offset)


def _reshaped_generic(op: Generic, reshape: Reshape) -> Generic | None:
    """A Generic without operands, computed in the reshaped shape; None if its indices would need division."""
    if op.combiner is not None:
        return None
    extents = reshape.output.type.shape
    flat = linearize([Linear.dim(i) for i in range(len(extents))], extents)
    indices = delinearize(flat, extents, op.extents)
    if indices is None:
        return None

    return replace(op, outputs=reshape.outputs, extents=extents, body=over_loops(op.body, indices))
