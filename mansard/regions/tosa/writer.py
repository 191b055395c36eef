"""The states of named values while a program is written, and their way from real numbers to integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mansard.dtypes import DType
from mansard.ir.types import Value
from mansard.regions.named import Encoding, NamedGraph, NamedOp
from mansard.regions.tosa.builder import Builder
from mansard.regions.tosa.program import Array, NoTosaError
from mansard.regions.tosa.values import Integer, Known, Scaled, State, Tabulated

TYPES = {DType.I8: "INT8", DType.U8: "INT8", DType.I16: "INT16", DType.I32: "INT32"}
_OFFSET = {DType.U8: 128}
RANGES = {"INT8": (-128, 127), "INT16": (-32768, 32767), "INT32": (-(1 << 31), (1 << 31) - 1)}
_INDICES = np.arange(-128, 128)

FINE = 1 << 26
"""The largest element of an INT32 tensor that stands for real numbers; rounding to it is far below a step of
8-bit numbers."""
FACTOR = 1 << 15
"""The largest element of a factor: products stay within 32 bits."""


class Writer:
    """Writes one program. ``states`` has what each named value is."""

    def __init__(self, graph: NamedGraph, builder: Builder) -> None:
        self.graph, self.builder = graph, builder
        self.states: dict[Value, State] = {}

    # Operands ---------------------------------------------------------------------------------
    def shape(self, value: Value) -> tuple[int, ...]:
        """The static shape of a value."""
        return value.type.concrete({})

    def state(self, op: NamedOp, value: Value) -> State:
        """What a value is; NoTosaError for one that has no form here."""
        if value not in self.states:
            raise NoTosaError(op, f"its input {value} is {value.type.dtype.value}; integers alone can enter")
        return self.states[value]

    def integer(self, op: NamedOp, value: Value) -> Integer:
        """A value as a tensor of integers."""
        state = self.state(op, value)
        if isinstance(state, Tabulated) and state.affine:
            return state.source
        if isinstance(state, Known):
            return self.stored(op, state)
        if not isinstance(state, Integer):
            raise NoTosaError(op, f"its input {value} is no tensor of integers, but f32")
        return state

    def stored(self, op: NamedOp, known: Known) -> Integer:
        """A constant as a tensor of the program."""
        if known.dtype not in TYPES:
            raise NoTosaError(op, f"it reads a constant of {known.dtype.value}")
        offset = _OFFSET.get(known.dtype, 0)
        tensor = self.builder.constant(TYPES[known.dtype], known.array.astype(np.int64) - offset)
        return Integer(tensor, TYPES[known.dtype], known.shape, known.encoding, offset)

    def real(self, op: NamedOp, value: Value) -> Scaled | Tabulated | Known:
        """A value as the numbers it stands for."""
        state = self.state(op, value)
        if not isinstance(state, Integer):
            return state
        if state.encoding is None:
            unit = np.ones(1)
            return Scaled(self.wide(state), state.shape, unit, RANGES[state.dtype][1], 2.0**31)
        if state.encoding.axis is not None:
            raise NoTosaError(op, f"its input {value} has a scale for each index of a dim")
        if state.dtype == "INT8":
            numbers = (_INDICES - state.zero).astype(np.float32) * np.float32(state.encoding.scale)
            return Tabulated(state, numbers)
        largest = max(abs(bound - state.zero) for bound in RANGES[state.dtype])
        scale = state.encoding.scale
        return Scaled(self.wide(state), state.shape, np.array([scale]), largest, largest * scale)

    def wide(self, state: Integer) -> str:
        """The INT32 tensor of the integers without their zero point."""
        if state.dtype == "INT32" and state.zero == 0:
            return state.tensor
        return self.builder.rescale(state.tensor, 1.0, "INT32", in_zero=state.zero)

    def scaled(self, state: Scaled | Tabulated) -> Scaled:
        """Real numbers as an INT32 tensor with scales."""
        if isinstance(state, Scaled):
            return state
        source = state.source
        if state.affine:
            assert source.encoding is not None
            largest = int(np.abs(_INDICES - source.zero).max())
            scale = source.encoding.scale
            return Scaled(self.wide(source), state.shape, np.array([scale]), largest, largest * scale)
        bound = float(np.abs(state.numbers).max()) or 1.0
        scale = bound / 32512  # of 127 * 256: high bytes stay within -128 … 127
        whole = np.rint(state.numbers / scale).astype(np.int64)
        high, low = whole >> 8, (whole & 255) - 128
        parts = [self.table(source, part) for part in (high, low)]
        wide = [
            self.builder.rescale(parts[0], 256.0, "INT32"),
            self.builder.rescale(parts[1], 1.0, "INT32", in_zero=-128),
        ]
        total = self.builder.op("ADD", wide, "INT32", state.shape)
        return Scaled(total, state.shape, np.array([scale]), 32512, bound)

    def table(self, source: Integer, entries: Array) -> str:
        """An 8-bit function of an 8-bit tensor."""
        if np.array_equal(entries, _INDICES):
            return source.tensor
        table = self.builder.constant("INT8", entries)
        return self.builder.op("TABLE", (source.tensor, table), "INT8", source.shape)

    def with_scale(self, state: Scaled, scale: float) -> Scaled:
        """Real numbers with one given scale."""
        tensor = self.builder.rescale(state.tensor, state.scales / scale, "INT32")
        tensor = self.builder.reshape(tensor, state.shape)
        return Scaled(tensor, state.shape, np.array([scale]), math.ceil(state.bound / scale), state.bound)

    def settled(self, state: Scaled, largest: int = FINE) -> Scaled:
        """Real numbers with one scale, and elements of at most ``largest``."""
        if len(state.scales) == 1 and state.largest <= largest and state.dtype == "INT32":
            return state
        return self.with_scale(state, fine_scale(state.bound, largest))

    # Results ----------------------------------------------------------------------------------
    def store(self, op: NamedOp, state: State) -> State:
        """What an op's output is: real numbers are clamped and, where it has an encoding, encoded."""
        dtype, encoding = op.output.type.dtype, self.graph.encodings.get(op.output)
        if isinstance(state, Known):
            if state.dtype is not dtype or state.encoding != encoding or op.clamp is not None:
                raise NoTosaError(op, "it computes a constant")
            return state
        if isinstance(state, Integer):
            if op.clamp is not None:
                raise NoTosaError(op, "it clamps integers without an encoding")
            return state
        if encoding is None:
            if dtype is not DType.F32:
                raise NoTosaError(op, f"its result is {dtype.value} without an encoding")
            return state if op.clamp is None else self.clamped(state, *op.clamp)
        return self.encoded(op, state, encoding, dtype)

    def encoded(self, op: NamedOp, state: Scaled | Tabulated, encoding: Encoding, dtype: DType) -> Integer:
        """Real numbers as the nearest integers of an encoding."""
        if encoding.axis is not None:
            raise NoTosaError(op, "its result has a scale for each index of a dim")
        if dtype not in TYPES:
            raise NoTosaError(op, f"its result is {dtype.value}")
        into, offset = TYPES[dtype], _OFFSET.get(dtype, 0)
        zero = encoding.zero - offset
        low, high = RANGES[into]
        if op.clamp is not None:
            ends = [end / encoding.scale + zero for end in op.clamp]
            low = max(low, round(ends[0])) if math.isfinite(ends[0]) else low
            high = min(high, round(ends[1])) if math.isfinite(ends[1]) else high
        if isinstance(state, Tabulated) and into == "INT8":
            steps = np.rint(state.numbers / np.float32(encoding.scale)) + zero
            tensor = self.table(state.source, np.clip(np.nan_to_num(steps), low, high).astype(np.int64))
            return Integer(tensor, into, state.shape, encoding, offset)
        state = self.scaled(state)
        tensor = self.builder.rescale(state.tensor, state.scales / encoding.scale, into, out_zero=zero)
        tensor = self.builder.reshape(tensor, state.shape)
        if (low, high) != RANGES[into]:
            if into == "INT32":
                raise NoTosaError(op, "it clamps an i32 result")
            tensor = self.builder.clamp(tensor, low, high)
        return Integer(tensor, into, state.shape, encoding, offset)

    def clamped(self, state: Scaled | Tabulated, low: float, high: float) -> Scaled | Tabulated:
        """Real numbers within bounds, either of which may be infinite."""
        if isinstance(state, Tabulated):
            numbers = np.clip(state.numbers, np.float32(low), np.float32(high))
            return Tabulated(state.source, numbers, affine=False)
        state = self.settled(state)
        scale = float(state.scales[0])
        for kind, bound in (("MAXIMUM", low), ("MINIMUM", high)):
            if math.isfinite(bound) and abs(bound) <= state.bound:
                limit = self.builder.constant("INT32", np.full([1] * len(state.shape), round(bound / scale)))
                operands = (state.tensor, limit)
                tensor = self.builder.op(kind, operands, "INT32", state.shape, nan_mode="PROPAGATE")
                state = Scaled(tensor, state.shape, state.scales, state.largest, state.bound)
        return state


def fine_scale(bound: float, largest: int = FINE) -> float:
    """A power of two by which numbers up to ``bound`` are integers up to ``largest``."""
    return float(2.0 ** math.ceil(math.log2(bound or 1.0)) / largest)


def broadcast_shape(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape of the result of an op on shapes of one rank."""
    return tuple(int(extent) for extent in np.broadcast_shapes(*map(tuple, shapes)))
