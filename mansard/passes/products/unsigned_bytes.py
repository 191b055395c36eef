"""Store signed codes of activations as unsigned ones.

Before (a zero point of -128, as frameworks give results of a ReLU)::

    %q: 1x8x8x32xi8 = generic (...) {i8(min(max(round(%x[...] * 40.0) + -128.0, -128.0), 127.0))}
    %p: 1x10x10x32xi8 = pad %q low [0, 1, 1, 0] high [0, 1, 1, 0] value -128
    %y: 1x10x10x32xf32 = generic (...) {(f32(%p[...]) - -128.0) * 0.025}

After::

    %q: 1x8x8x32xu8 = generic (...) {u8(min(max(round(%x[...] * 40.0), 0.0), 255.0))}
    %p: 1x10x10x32xu8 = pad %q low [0, 1, 1, 0] high [0, 1, 1, 0] value 0
    %y: 1x10x10x32xf32 = generic (...) {f32(%p[...]) * 0.025}

Dot-product instructions of x86 multiply unsigned bytes by signed ones, so one factor of each product should
be unsigned: the one that is computed, since weights are signed. Windows skip padding that is zero, and zero
is the least unsigned byte. What the codes stand for is the same, to the last bit. Codes stay signed where a
model returns them, and where both factors of a product are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard.analysis.byte_rounding import byte_rounding, rounded_to_byte
from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op, Pad, Reshape
from mansard.ir.scalar import Apply, Arg, Cast, Const, Scalar, children, rewrite, walk
from mansard.ir.types import Value

I8, U8 = DType.I8, DType.U8
MOVE = 128
"""What is added to signed codes."""


def unsigned_bytes(graph: Graph) -> Graph:
    """Let roundings to i8 of computed values be roundings to u8 where all readers can follow; the same graph
    where there are none."""
    return _Pass(graph).run()


class _Pass:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.users, self.live = graph, graph.users(), set(graph.live_outs())
        self.fixed = set(graph.constants)
        """Values that are computed from constants alone."""
        for op in graph.ops:
            if op.inputs and not op.has_effect and self.fixed.issuperset(op.inputs):
                self.fixed.update(op.outputs)

    def run(self) -> Graph:
        moved: dict[Value, Value] = {}
        for op in self.graph.ops:
            if _rounds_signed(op) and not self.fixed.issuperset(op.inputs):
                for value in self._moved(op.output) or ():
                    moved[value] = Value(value.name, replace(value.type, dtype=U8))
        return self.graph.with_ops([_rewritten(op, moved) for op in self.graph.ops]) if moved else self.graph

    def _moved(self, value: Value) -> Sequence[Value] | None:
        """A value and those with its elements in other places; None where a reader cannot follow."""
        found = [value]
        for each in found:
            if each in self.live:
                return None
            for user in self.users.get(each, []):
                if _moves(user):
                    found.append(user.outputs[0])
                elif not _widens(user, each) or self._multiplies_computed(user.outputs[0]):
                    return None
        return found

    def _multiplies_computed(self, value: Value) -> bool:
        """Whether a value is a factor beside another that is computed."""
        seen = [value]
        for each in seen:
            for user in self.users.get(each, []):
                if isinstance(user, Generic) and is_contraction(user):
                    if not any(v in self.fixed for v in user.inputs):
                        return True
                elif _moves(user):
                    seen.append(user.outputs[0])
        return False


def _rounds_signed(op: Op) -> bool:
    if not isinstance(op, Generic) or op.combiner is not None or not isinstance(op.body, Cast):
        return False
    return op.output.type.dtype is I8 and byte_rounding(op.body) is not None


def _moves(op: Op) -> bool:
    """Whether an op only moves the elements of its operand."""
    if isinstance(op, Generic):
        plain = len(op.inputs) == 1 and all(m is not None and m.fill is None for m in op.maps)
        return plain and op.combiner in (None, "max") and isinstance(op.body, Arg)
    return isinstance(op, (Pad, Reshape))


def _widens(op: Op, value: Value) -> bool:
    """Whether an elementwise op reads a value only to cast it to a wider type."""
    if not isinstance(op, Generic) or op.combiner is not None:
        return False
    read = {i for i, v in enumerate(op.inputs) if v is value}
    maps = [op.maps[i] for i in read]
    if any(m is None or m.fill is not None for m in maps):
        return False
    parents = [node for node in walk(op.body) if any(_reads(kid, read) for kid in children(node))]
    wide = all(isinstance(node, Cast) and node.dtype in (DType.F32, DType.I32, DType.I64) for node in parents)
    return wide and not _reads(op.body, read)


def _reads(node: Scalar, operands: set[int]) -> bool:
    return isinstance(node, Arg) and node.index in operands


def _rewritten(op: Op, moved: dict[Value, Value]) -> Op:
    outputs = tuple(moved.get(v, v) for v in op.outputs)
    operands = {i for i, v in enumerate(op.inputs) if v in moved}
    if outputs == op.outputs and not operands:
        return op
    moves_result = outputs != op.outputs
    op = replace(op, inputs=tuple(moved.get(v, v) for v in op.inputs), outputs=outputs)
    if isinstance(op, Pad):
        return replace(op, value=int(op.value) + MOVE)
    if not isinstance(op, Generic):
        return op
    body = rewrite(op.body, lambda node: _read_unsigned(node, operands)) if operands else op.body
    if moves_result and isinstance(body, Cast):
        rounding = byte_rounding(Cast(body.arg, I8))
        assert rounding is not None
        zero, low, high = (n + MOVE for n in (rounding.zero, rounding.low, rounding.high))
        body = rounded_to_byte(replace(rounding, zero=zero, low=low, high=high), U8)
    return replace(op, body=body)


def _read_unsigned(node: Scalar, operands: set[int]) -> Scalar:
    """A node over codes that are larger by `MOVE`; zero points take that in."""
    if _reads(node, operands):
        assert isinstance(node, Arg)
        return replace(node, dtype=U8)
    if isinstance(node, Cast) and _reads(node.arg, operands):
        return Apply("sub", (node, Const(_number(MOVE, node.dtype), node.dtype)), node.dtype)
    if isinstance(node, Apply) and node.op in ("add", "sub"):
        match node.args:
            case Apply("sub", (Cast(code) as wide, _)), Const(zero) if _reads(code, operands) and zero == int(
                zero
            ):
                moved = MOVE + int(zero) * (1 if node.op == "sub" else -1)
                shift = Const(_number(moved, node.dtype), node.dtype)
                return Apply("sub", (wide, shift), node.dtype) if moved else wide
    return node


def _number(value: int, dtype: DType) -> float | int:
    return float(value) if dtype.is_float else value
