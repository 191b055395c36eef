"""Bring the rounding of numbers to bytes, and what bytes stand for, to one form, whatever steps they come in.

Frameworks write a layer's quantisation as many elementwise ops, clamp before they round, and pad before they
quantise. Before (ReLU6, padding and quantisation as PyTorch traces them)::

    %r: 1x8x8x32xf32 = generic (...) {min(max(%x[d0, d1, d2, d3], 0.0), 6.0)}
    %p: 1x10x10x32xf32 = pad %r low [0, 1, 1, 0] high [0, 1, 1, 0] value 0.0
    %a: 1x10x10x32xf32 = generic (...) {%p[d0, d1, d2, d3] * 40.0}
    %b: 1x10x10x32xf32 = generic (...) {round(%a[d0, d1, d2, d3])}
    %c: 1x10x10x32xf32 = generic (...) {%b[d0, d1, d2, d3] + 3.0}
    %q: 1x10x10x32xu8 = generic (...) {u8(min(max(%c[d0, d1, d2, d3], 0.0), 255.0))}
    %d: 1x10x10x32xf32 = generic (...) {f32(%q[d0, d1, d2, d3])}
    %e: 1x10x10x32xf32 = generic (...) {%d[d0, d1, d2, d3] - 3.0}
    %y: 1x10x10x32xf32 = generic (...) {%e[d0, d1, d2, d3] * 0.025}

After, one op for each direction, limits on the integers only, and padding of bytes::

    %o: 1x8x8x32xu8 = generic (...) {u8(min(max(round(%x[d0, d1, d2, d3] * 40.0) + 3.0, 3.0), 243.0))}
    %q: 1x10x10x32xu8 = pad %o low [0, 1, 1, 0] high [0, 1, 1, 0] value 3
    %y: 1x10x10x32xf32 = generic (...) {(f32(%q[d0, d1, d2, d3]) - 3.0) * 0.025}

Later passes look for whole roundings in one op. Results are the same to the last bit: every step between a
limit and the rounding grows with its operand, and so does its rounding in f32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mansard.analysis.affine import Affine
from mansard.analysis.byte_rounding import ByteRounding, byte_rounding, rounded_to_byte
from mansard.analysis.operands import inlined
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic, Op, Pad, Reshape
from mansard.ir.scalar import Apply, Arg, Bitcast, Cast, Const, Scalar, rewrite, walk
from mansard.ir.types import Constant, IndexMap, TensorType, Value
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.scalar_rules import simplify_node
from mansard.passes.canonical.simplify import simplify_op

RANGES = {DType.I8: (-128, 127), DType.U8: (0, 255)}
BYTES = tuple(RANGES)
F32 = DType.F32
WHOLE = (DType.I32, DType.I64)
"""Types that hold every byte, by way of which numbers are cast."""
STEPS = ("add", "sub", "mul", "div", "max", "min", "round")
"""What a map before a rounding may compute, beside casts, to become part of it."""


def merge_byte_maps(graph: Graph) -> Graph:
    """Make one op of each rounding to bytes and of each dequantisation; the same graph where all are."""
    # Masks of clamps that nothing reads any more would count as readers of numbers.
    before = alive = eliminate_dead(graph)
    while (after := _pads_behind_roundings(_Merging(alive).run())) is not alive:
        alive = eliminate_dead(after)
    return graph if alive is before else alive


class _Merging:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.users, self.live = graph, graph.users(), set(graph.live_outs())
        self.maps: dict[Value, Generic] = {}
        """Elementwise maps of one operand, with constants of one element as literals."""
        self.literals: dict[Value, Const | None] = {}
        self.producers = graph.producers()

        self.taken = {v.name for v in graph.values()}

    def run(self) -> Graph:
        ops = [
            new for op in self.graph.ops for new in (self._merged(op) if isinstance(op, Generic) else (op,))
        ]
        if len(ops) == len(self.graph.ops) and all(a is b for a, b in zip(ops, self.graph.ops, strict=True)):
            return self.graph
        return self.graph.with_ops(ops)

    def _merged(self, op: Generic) -> tuple[Generic, ...]:
        plain = self._with_literals(op)
        if not _is_map(plain):
            return (op,)
        done: tuple[Generic, ...] = ()
        if isinstance(plain.body, Cast) and plain.body.dtype in BYTES:
            done = self._rounding(plain)
        elif (source := self.maps.get(plain.inputs[0])) is not None and source.inputs[0].type.dtype in BYTES:
            merged = _joined(plain, source)
            done = (merged,) if _dequantises(merged) or _widens(merged) else ()
        elif isinstance(plain.body, Arg) and plain is not op:
            done = (plain,)
        for new in done or (plain,):
            self.maps[new.output] = new
        same = [(new.inputs, new.body) for new in done] == [(op.inputs, op.body)]
        return (op,) if same or not done else done

    def _rounding(self, op: Generic) -> tuple[Generic, ...]:
        """The op with the maps before it that only it reads, and its limits on integers; () if it is none.

        PyTorch casts numbers to u8 by way of i32 and i8, whose bits are then read as u8.
        """
        source = self.maps.get(op.inputs[0])
        while source is not None and self._joins(op, source):
            op = _joined(op, source)
            source = self.maps.get(op.inputs[0]) if _is_map(op) else None
        # Casts that undo each other leave none behind.
        found = _rounding_and_type(op.body) if isinstance(op.body, Cast) else None
        if found is None:
            return ()
        rounding, stored = found
        body, dtype = rounded_to_byte(_with_limits_last(rounding), stored), op.output.type.dtype
        if stored is dtype:
            return (replace(op, body=body),)
        name = fresh_name(self.taken, f"{op.output.name}.{stored.value}")
        result = Value(name, replace(op.output.type, dtype=stored))
        same_bits = replace(op, inputs=(result,), body=Bitcast(Arg(0, stored), dtype))
        return replace(op, outputs=(result,), body=body), same_bits

    def _joins(self, op: Generic, source: Generic) -> bool:
        """Whether a map is a step of the rounding that reads it; another rounding is none."""
        if source.output.type.dtype in BYTES and any(node.dtype is F32 for node in walk(op.body)):
            return False
        if len(self.users.get(source.output, ())) > 1 and not _dequantises(source):
            return False
        nodes = [node for node in walk(source.body) if not isinstance(node, (Arg, Const))]
        steps = all(isinstance(n, Cast) or (isinstance(n, Apply) and n.op in STEPS) for n in nodes)
        return steps and source.output not in self.live and source.output.type.dtype in (F32, *WHOLE, *BYTES)

    # Literals -----------------------------------------------------------------------------------
    def _with_literals(self, op: Generic) -> Generic:
        if op.combiner is not None or len(op.inputs) < 2:
            return op
        known = {i: literal for i, v in enumerate(op.inputs) if (literal := self._literal(v)) is not None}
        if not known or len(known) == len(op.inputs):
            return op
        body = rewrite(op.body, lambda n: known.get(n.index, n) if isinstance(n, Arg) else n)
        simplified = simplify_op(replace(op, body=body))
        return simplified if isinstance(simplified, Generic) else op

    def _literal(self, value: Value) -> Const | None:
        """The number that a value of one element is, if it is known."""
        if value not in self.literals:
            self.literals[value] = self._number(value) if value.type.elements == 1 else None
        return self.literals[value]

    def _number(self, value: Value) -> Const | None:
        if value in self.graph.constants:
            return _element(value, self.graph.constants[value])
        op = self.producers.get(value)
        if isinstance(op, Reshape):
            return self._literal(op.inputs[0])
        if not isinstance(op, Generic) or op.combiner is not None or any(m is None for m in op.maps):
            return None
        known = [self._literal(v) for v in op.inputs]
        if any(literal is None for literal in known):
            return None
        return _evaluated(op.body, known, op.extents)  # type: ignore[arg-type]


def _joined(op: Generic, source: Generic) -> Generic:
    """A map computing the map that it reads."""
    joined = simplify_op(inlined(op, {source.output: source}))
    assert isinstance(joined, Generic)
    return joined


def _element(value: Value, constant: Constant) -> Const | None:
    (element,) = load(value, constant).reshape(-1).tolist()
    return Const(element, value.type.dtype)


def _evaluated(body: Scalar, arguments: Sequence[Const], extents: Sequence[DimLike] = ()) -> Const | None:
    """A body of literals, and of indices of dims of one element, as a literal."""
    affine = Affine(extents)
    placed = rewrite(body, lambda n: arguments[n.index] if isinstance(n, Arg) else n)
    result = rewrite(placed, lambda node: simplify_node(node, affine))
    return result if isinstance(result, Const) else None


def _is_map(op: Generic) -> bool:
    """Whether an op computes each element from the one in the same place of its one operand."""
    plain = op.combiner is None and len(op.inputs) == 1 and op.maps[0] == IndexMap.identity(op.rank)
    return plain and op.inputs[0].type.shape == op.output.type.shape


def _dequantises(op: Generic) -> bool:
    """Whether a map computes what bytes stand for: a cast, a zero point, a scale."""
    body = op.body
    if body.dtype is not F32 or op.inputs[0].type.dtype not in BYTES:
        return False
    while isinstance(body, Apply) and body.op in ("add", "sub", "mul") and isinstance(body.args[1], Const):
        body = body.args[0]
    return isinstance(body, Cast) and isinstance(body.arg, Arg)


def _widens(op: Generic) -> bool:
    """Whether a map computes bytes as wider integers."""
    return (
        op.body.dtype in WHOLE
        and isinstance(op.body, Cast)
        and op.body.arg == Arg(0, op.inputs[0].type.dtype)
    )


def _rounding_and_type(node: Cast) -> tuple[ByteRounding, DType] | None:
    """The rounding of a number to a byte that a cast ends, by way of wider integers or not, and whether the
    bits are those of an i8 or of a u8.

    PyTorch casts numbers to u8 by way of i32 and i8, whose bits are then read as u8, and moves signed bytes
    up by 128 for products that want unsigned ones: ``i8(i32(i8(min(max(round(x), -128.0), 127.0))) + 128)``.
    """
    if (rounding := byte_rounding(node)) is not None:
        return rounding, node.dtype
    body, shift = node.arg, 0
    while body.dtype in WHOLE:
        if isinstance(body, Apply) and body.op in ("add", "sub") and isinstance(body.args[1], Const):
            shift += int(body.args[1].value) * (1 if body.op == "add" else -1)
            body = body.args[0]
        elif isinstance(body, Cast):
            body = body.arg
        else:
            return None
    inner = body if isinstance(body, Cast) and body.dtype in BYTES else None
    for dtype in (node.dtype, *(other for other in BYTES if other is not node.dtype)):
        rounding = byte_rounding(inner or Cast(body, dtype))
        if rounding is None:
            continue
        moved = replace(
            rounding, zero=rounding.zero + shift, low=rounding.low + shift, high=rounding.high + shift
        )
        least, largest = RANGES[dtype]
        if least <= moved.low and moved.high <= largest:
            return moved, dtype
    return None


def _rounding_of(op: Generic) -> ByteRounding | None:
    return byte_rounding(op.body) if isinstance(op.body, Cast) else None


# Limits -----------------------------------------------------------------------------------------
def _with_limits_last(rounding: ByteRounding) -> ByteRounding:
    """The rounding with the limits of its operand as limits of the byte.

    ``round(max(x, 0.0) * 40.0) + 3.0`` is at least 3; a step in between has to grow with its operand.
    """
    steps: list[Apply] = []
    x, limit = rounding.x, rounding
    while isinstance(x, Apply) and len(x.args) == 2:
        inner, literal = x.args
        if not isinstance(literal, Const) or isinstance(inner, Const):
            break
        if x.op in ("max", "min"):
            bound = _byte_of(literal, steps, rounding)
            if bound is None:
                break
            reached = int(min(max(bound, limit.low), limit.high))
            limit = replace(limit, low=reached) if x.op == "max" else replace(limit, high=reached)
            rounding = replace(limit, x=_rebuilt(inner, steps))
        elif x.op in ("add", "sub") or (x.op in ("mul", "div") and 0 < literal.value < math.inf):
            steps.append(x)
        else:
            break
        x = inner
    return rounding


def _byte_of(literal: Const, steps: list[Apply], rounding: ByteRounding) -> float | None:
    """A literal after the steps and the rounding, before its limits; None where it is no number."""
    number = _evaluated(Apply("round", (_rebuilt(literal, steps),), F32), [])
    if number is None or math.isnan(number.value):
        return None
    return float(number.value) + rounding.zero


def _rebuilt(x: Scalar, steps: list[Apply]) -> Scalar:
    for step in reversed(steps):
        x = replace(step, args=(x, step.args[1]))
    return x


# Padding ----------------------------------------------------------------------------------------
def _pads_behind_roundings(graph: Graph) -> Graph:
    """Pad bytes where only roundings read a padded value."""
    users, live = graph.users(), set(graph.live_outs())
    taken = {v.name for v in graph.values()}
    pads: dict[Value, Pad] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if (
            isinstance(op, Pad)
            and op.output not in live
            and all(_pads(op, user) for user in users.get(op.output, []))
        ):
            pads[op.output] = op
        pad = pads.get(op.inputs[0]) if isinstance(op, Generic) and len(op.inputs) == 1 else None
        if pad is None:
            ops.append(op)
            continue
        assert isinstance(op, Generic)
        (source,), value = pad.inputs, _padding(pad, op)
        assert value is not None
        type_ = TensorType(source.type.shape, op.output.type.dtype)
        rounded = Value(fresh_name(taken, f"{op.output.name}.unpadded"), type_)
        ops.append(replace(op, inputs=(source,), outputs=(rounded,), extents=type_.shape))
        ops.append(replace(pad, inputs=(rounded,), outputs=op.outputs, value=value))
    return graph.with_ops(ops) if pads else graph


def _pads(pad: Pad, user: Op) -> bool:
    """Whether a user of padded values can round before they are padded."""
    if not isinstance(user, Generic) or not _is_map(user) or _rounding_of(user) is None:
        return False
    return _padding(pad, user) is not None


def _padding(pad: Pad, user: Generic) -> int | None:
    byte = _evaluated(user.body, [Const(pad.value, pad.output.type.dtype)], user.extents)
    return None if byte is None else int(byte.value)
