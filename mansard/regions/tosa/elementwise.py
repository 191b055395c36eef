"""Elementwise ops: tables of 8-bit integers where one tensor decides, else INT32 arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mansard.dtypes import DType
from mansard.errors import UnsupportedOpError
from mansard.ir.interpreter.scalar import cast
from mansard.regions.named import Elementwise, NamedOp, Recode
from mansard.regions.named.functions import apply_scalar
from mansard.regions.tosa.program import Array, NoTosaError
from mansard.regions.tosa.values import Integer, Known, Scaled, State, Tabulated
from mansard.regions.tosa.writer import FACTOR, FINE, Writer, fine_scale

_SAME = {"add": "ADD", "sub": "SUB", "max": "MAXIMUM", "min": "MINIMUM"}
"""Ops on operands of one scale, whose result has it, too."""
_ROOM = FINE // 2
Real = Scaled | Tabulated


def recode(writer: Writer, op: Recode) -> State:
    """Numbers in another encoding: what storing them does."""
    return writer.real(op, op.inputs[0])


def elementwise(writer: Writer, op: Elementwise) -> State:
    """A scalar op on tensors."""
    states = [writer.state(op, value) for value in op.inputs]
    plain = [s for s in states if isinstance(s, Integer) and s.encoding is None]
    if plain and op.output.type.dtype is not DType.F32 and op.op != "cast":
        return _integers(writer, op)
    operands = [writer.real(op, value) for value in op.inputs]
    if table := _tabulated(op, operands):
        return table
    shape = writer.shape(op.output)
    if op.op == "cast" and op.output.type.dtype is DType.F32 and not isinstance(operands[0], Known):
        return operands[0]
    if op.op == "neg" and not isinstance(operands[0], Known):
        zero = Known(np.zeros([1] * len(shape), np.float32), DType.F32)
        return _same_scale(writer, op, "sub", [zero, operands[0]], shape)
    if op.op in _SAME:
        return _same_scale(writer, op, op.op, operands, shape)
    if op.op == "div" and isinstance(operands[1], Known):
        with np.errstate(divide="ignore"):
            operands[1] = Known(1.0 / operands[1].real(), DType.F32)
        return _multiplied(writer, op, operands, shape)
    if op.op == "mul":
        return _multiplied(writer, op, operands, shape)
    raise NoTosaError(op, "it has no integer form on what is no function of one 8-bit tensor")


def _tabulated(op: Elementwise, operands: list[Scaled | Tabulated | Known]) -> Tabulated | None:
    """The op as a function of the one 8-bit tensor that its operands depend on."""
    tables = [s for s in operands if isinstance(s, Tabulated)]
    scalars = [s for s in operands if isinstance(s, Known) and s.array.size == 1 and s.encoding is None]
    if not tables or len(tables) + len(scalars) < len(operands):
        return None
    if any(table.source.tensor != tables[0].source.tensor for table in tables):
        return None
    if any(table.shape != op.output.type.concrete({}) for table in tables):
        return None
    values, source = [], DType.F32
    for state in operands:
        if not isinstance(state, Scaled):
            values.append(state.numbers if isinstance(state, Tabulated) else state.array.reshape(-1)[:1])
            source = state.dtype
    target = op.output.type.dtype
    with np.errstate(all="ignore"):
        try:
            if op.op == "cast":
                numbers = cast(values[0], source, target)
            else:
                numbers = apply_scalar(op.op, values, source, target)
        except UnsupportedOpError:
            return None
    numbers = np.broadcast_to(numbers, 256)
    return Tabulated(tables[0].source, numbers, target, affine=False)


def _same_scale(
    writer: Writer,
    op: NamedOp,
    kind: str,
    operands: list[Scaled | Tabulated | Known],
    shape: tuple[int, ...],
) -> Scaled:
    """A sum, a difference or an extreme of two operands, in integers of one scale."""
    reals = [s if _is_small(s) or isinstance(s, Known) else writer.scaled(s) for s in operands]
    bounds = [_bound(s) for s in reals]
    if all(isinstance(s, Known) for s in reals):
        raise NoTosaError(op, "it computes a constant")
    bound = sum(bounds) if kind in ("add", "sub") else max(bounds)
    scale = fine_scale(max(bounds), _ROOM)
    tensors = [_in_scale(writer, s, scale, len(shape)) for s in reals]
    extra = {"nan_mode": "PROPAGATE"} if kind in ("max", "min") else {}
    tensor = writer.builder.op(_SAME[kind], tensors, "INT32", shape, **extra)
    return Scaled(tensor, shape, np.array([scale]), math.ceil(bound / scale) + 1, bound)


def _is_small(state: Scaled | Tabulated | Known) -> bool:
    """Whether they are 8-bit integers' own numbers: one RESCALE brings these to any scale."""
    return isinstance(state, Tabulated) and state.affine


def _bound(state: Scaled | Tabulated | Known) -> float:
    if isinstance(state, Scaled):
        return state.bound
    if isinstance(state, Tabulated):
        return float(np.abs(state.numbers).max())
    finite = np.abs(state.real())
    return float(np.where(np.isfinite(finite), finite, 0).max(initial=0))


def _in_scale(writer: Writer, state: Scaled | Tabulated | Known, scale: float, rank: int) -> str:
    if isinstance(state, Scaled):
        return writer.with_scale(state, scale).tensor
    if isinstance(state, Tabulated):
        source = state.source
        assert source.encoding is not None
        ratio = source.encoding.scale / scale
        return writer.builder.rescale(source.tensor, ratio, "INT32", in_zero=source.zero)
    limit = (1 << 30) * scale
    steps = np.rint(np.clip(np.nan_to_num(state.real()), -limit, limit) / scale)
    return writer.builder.constant("INT32", steps.reshape([1] * (rank - steps.ndim) + list(steps.shape)))


def _multiplied(
    writer: Writer, op: NamedOp, operands: list[Scaled | Tabulated | Known], shape: tuple[int, ...]
) -> Scaled:
    known = [s for s in operands if isinstance(s, Known)]
    others = [s for s in operands if not isinstance(s, Known)]
    if not others:
        raise NoTosaError(op, "it computes a constant")
    if known and (factors := _scales(known[0], shape)) is not None and others[0].shape == shape:
        return writer.scaled(others[0]).times(factors)
    reals = _factors([writer.scaled(s) for s in others], writer)
    bounds = [_bound(s) for s in reals] + [_bound(s) for s in known]
    bound = math.prod(bounds)
    if not bound:
        raise NoTosaError(op, "it multiplies by zero")
    tensors, scale = [s.tensor for s in reals], math.prod(float(s.scales[0]) for s in reals)
    for constant in known:
        step = fine_scale(_bound(constant), FACTOR)
        tensors.append(_in_scale(writer, constant, step, len(shape)))
        scale *= step
    operands_ = (*tensors, writer.builder.constant("INT8", [0]))
    tensor = writer.builder.op("MUL", operands_, "INT32", shape)
    return Scaled(tensor, shape, np.array([scale]), math.ceil(bound / scale) + 1, bound)


def _factors(states: list[Scaled], writer: Writer) -> list[Scaled]:
    """Factors whose product has 31 bits: 8-bit integers as they are leave more bits to the other."""
    first = writer.settled(min(states, key=lambda state: state.largest), FACTOR)
    room = FACTOR if len(states) == 1 else min(FINE, (1 << 30) // max(first.largest, 1))
    return [first, *(writer.settled(s, room) for s in sorted(states, key=lambda s: s.largest)[1:])]


def _scales(known: Known, shape: tuple[int, ...]) -> Array | None:
    """A constant factor as positive scales of the last dim, if it is that."""
    numbers = known.real()
    if not np.all((numbers > 0) & np.isfinite(numbers)):
        return None
    if numbers.size == 1 or (numbers.size == shape[-1] == numbers.shape[-1]):
        return numbers.reshape(-1)
    return None


def _integers(writer: Writer, op: Elementwise) -> Integer:
    """Integers without an encoding, of 32 bits."""
    states = [writer.integer(op, value) for value in op.inputs]
    kind = {**_SAME, "mul": "MUL"}.get(op.op)
    if kind is None or any(s.dtype != "INT32" or s.encoding is not None for s in states):
        raise NoTosaError(op, "of integers without an encoding it takes sums, products and extremes of i32")
    tensors = [s.tensor for s in states]
    if kind == "MUL":
        tensors.append(writer.builder.constant("INT8", [0]))
    extra = {"nan_mode": "PROPAGATE"} if op.op in ("max", "min") else {}
    shape = writer.shape(op.output)
    return Integer(writer.builder.op(kind, tensors, "INT32", shape, **extra), "INT32", shape)


@dataclass(frozen=True)
class Moved:
    """The tensor behind a value whose elements an op moves, and what they are."""

    state: Integer | Scaled | Tabulated

    @property
    def tensor(self) -> str:
        """The tensor that is moved."""
        return self.state.source.tensor if isinstance(self.state, Tabulated) else self.state.tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.state.shape

    @property
    def dtype_name(self) -> str:
        """Its element type."""
        if isinstance(self.state, Scaled):
            return "INT32"
        return self.state.source.dtype if isinstance(self.state, Tabulated) else self.state.dtype

    def result(self, writer: Writer, op: NamedOp, tensor: str, shape: tuple[int, ...]) -> State:
        """The moved tensor as the op's result."""
        state = self.state
        if isinstance(state, Scaled):
            return replace(state, tensor=tensor, shape=shape)
        if isinstance(state, Tabulated):
            return replace(state, source=replace(state.source, tensor=tensor, shape=shape))
        result = replace(state, tensor=tensor, shape=shape)
        dtype, encoding = op.output.type.dtype, writer.graph.encodings.get(op.output)
        if dtype is op.inputs[0].type.dtype and encoding == state.encoding and op.clamp is None:
            return result
        writer.states[op.output] = result
        return writer.real(op, op.output)


def moved(writer: Writer, op: NamedOp, value: int = 0) -> Moved:
    """The tensor of an op's operand, real numbers with one scale for all."""
    state = writer.state(op, op.inputs[value])
    if isinstance(state, Known):
        state = writer.stored(op, state)
    if isinstance(state, Scaled) and (len(state.scales) > 1 or state.dtype != "INT32"):
        state = writer.settled(state)
    return Moved(state)
