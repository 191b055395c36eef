"""A program of the Graph IR, and its builder."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.ir.combiners import ARG_COMBINERS
from mansard.ir.ops import Assert, Attention, Concat, Generic, Op, Pad, Reshape, Scan, Scatter, Slice, Sort
from mansard.ir.scalar import Scalar
from mansard.ir.types import Constant, IndexMap, Location, TensorType, Value
from mansard.plan.constraints import ShapeConstraint
from mansard.plan.interface import Interface


@dataclass(frozen=True)
class State:
    """A buffer that lives across calls: ``before`` is its value on entry, ``after`` on exit.

    The storage starts as zeros (or ``initial``) and is updated in place.
    """

    before: Value
    after: Value
    initial: Constant | None = None


@dataclass(frozen=True)
class Graph:
    """Inputs, constants, states, ops in execution order, outputs. Passes are ``Graph -> Graph``."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    constants: Mapping[Value, Constant] = field(default_factory=dict)
    states: tuple[State, ...] = ()
    output_names: tuple[str, ...] = ()
    parameters: tuple[Dim, ...] = ()
    """Symbols that no input or state binds: the caller chooses their values."""
    constraints: tuple[ShapeConstraint, ...] = ()
    """Relations between symbols of the inputs that hold for every call."""
    interface: Interface | None = None
    """How the model is called in its framework. Passes leave inputs and outputs, and so this, alone; text and
    files of a Graph do not hold it."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What a compiled model's `Plan.info` shall say of it. Text and files of a Graph do not hold them."""

    def producers(self) -> dict[Value, Op]:
        """The op that defines each value."""
        return {v: op for op in self.ops for v in op.outputs}

    def users(self) -> dict[Value, list[Op]]:
        """The ops that read each value (each op once per value)."""
        result: dict[Value, list[Op]] = {}
        for op in self.ops:
            for value in dict.fromkeys(op.inputs):
                result.setdefault(value, []).append(op)
        return result

    def live_outs(self) -> frozenset[Value]:
        """Values that must survive the ops: outputs and states' final values."""
        return frozenset(self.outputs) | {s.after for s in self.states}

    def values(self) -> Iterator[Value]:
        """Every value: inputs, states, constants, results."""
        yield from self.inputs
        yield from (s.before for s in self.states)
        yield from self.constants
        for op in self.ops:
            yield from op.outputs

    def dims(self) -> dict[str, Dim]:
        """Every symbol in the shapes of inputs and states, and every parameter, by name."""
        symbols: dict[str, Dim] = {dim.name: dim for dim in self.parameters}
        for value in (*self.inputs, *(s.before for s in self.states)):
            for d in value.type.shape:
                if not isinstance(d, int):
                    symbols.update({s.name: s for s in d.symbols()})
        return symbols

    def with_ops(
        self, ops: Sequence[Op], rename: Mapping[Value, Value] | None = None, **changes: object
    ) -> Graph:
        """A graph with other ops, with outputs and state results renamed by ``rename``."""
        m = rename or {}
        return replace(
            self,
            ops=tuple(ops),
            outputs=tuple(m.get(v, v) for v in self.outputs),
            states=tuple(replace(s, after=m.get(s.after, s.after)) for s in self.states),
            **changes,  # type: ignore[arg-type]
        )

    def __str__(self) -> str:
        from mansard.ir.printer import print_graph

        return print_graph(self)


def fresh_name(taken: set[str], base: str) -> str:
    """``base``, or ``base_1`` … when taken; adds the result to ``taken``."""
    base = re.sub(r"[^A-Za-z0-9_.]", "_", base) or "v"
    name = base
    if base in taken:
        # A graph may have thousands of the same base: a free number is searched by halves, not one by one.
        above = 1
        while f"{base}_{above}" in taken:
            above *= 2
        numbers = range(above // 2 + 1, above + 1)
        free = bisect_left(numbers, True, key=lambda number: f"{base}_{number}" not in taken)
        name = f"{base}_{numbers[free]}"
    taken.add(name)
    return name


class GraphBuilder:
    """Builds a Graph op by op; each method appends one op and returns its result."""

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self._taken: set[str] = set()
        self._inputs: list[Value] = []
        self._constants: dict[Value, Constant] = {}
        self._ops: list[Op] = []
        self._states: list[State] = []
        self.location = Location()

    def value(self, name: str, shape: Sequence[DimLike], dtype: DType) -> Value:
        """A new value with a unique name, not yet defined by anything."""
        return Value(fresh_name(self._taken, name), TensorType(tuple(shape), dtype))

    def input(self, name: str, shape: Sequence[DimLike], dtype: DType) -> Value:
        """A model input."""
        self._inputs.append(self.value(name, shape, dtype))
        return self._inputs[-1]

    def constant(self, name: str, constant: Constant, shape: Sequence[DimLike], dtype: DType) -> Value:
        """A constant (a weight, or folded data)."""
        value = self.value(name, shape, dtype)
        self._constants[value] = constant
        return value

    def state(
        self, name: str, shape: Sequence[DimLike], dtype: DType, initial: Constant | None = None
    ) -> Value:
        """A state's value on entry; bind its final value with `update_state`."""
        before = self.value(name, shape, dtype)
        self._states.append(State(before, before, initial))
        return before

    def update_state(self, before: Value, after: Value) -> None:
        """Set the value a state holds when the call ends."""
        self._states = [replace(s, after=after) if s.before is before else s for s in self._states]

    def append(self, op: Op) -> Value:
        """Append an op and return its first result (an Assert has none: returns its input)."""
        self._ops.append(op)
        return op.outputs[0] if op.outputs else op.inputs[0]

    def generic(
        self,
        inputs: Sequence[Value],
        maps: Sequence[IndexMap | None],
        extents: Sequence[DimLike],
        body: Scalar,
        *,
        reduced: int = 0,
        combiner: str | None = None,
        name: str = "v",
    ) -> Value:
        """Append a Generic; the last ``reduced`` extents are reduced dims."""
        dtype = DType.I64 if combiner in ARG_COMBINERS else body.dtype
        out = self.value(name, extents[: len(extents) - reduced], dtype)
        op = Generic(
            tuple(inputs), (out,), tuple(extents), tuple(maps), body, combiner, location=self.location
        )
        return self.append(op)

    def reshape(self, x: Value, shape: Sequence[DimLike], name: str = "reshape") -> Value:
        """Append a Reshape."""
        out = self.value(name, shape, x.type.dtype)
        return self.append(Reshape((x,), (out,), location=self.location))

    def slice(
        self, x: Value, offsets: Sequence[DimLike], sizes: Sequence[DimLike], strides: Sequence[int]
    ) -> Value:
        """Append a Slice."""
        out = self.value("slice", sizes, x.type.dtype)
        return self.append(Slice((x,), (out,), tuple(offsets), tuple(strides), location=self.location))

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        """Append a Concat."""
        from mansard import dims

        shape = list(xs[0].type.shape)
        shape[axis] = dims.add(*(x.type.shape[axis] for x in xs))
        out = self.value("concat", shape, xs[0].type.dtype)
        return self.append(Concat(tuple(xs), (out,), axis, location=self.location))

    def pad(
        self, x: Value, low: Sequence[DimLike], high: Sequence[DimLike], value: float | int | bool
    ) -> Value:
        """Append a Pad."""
        from mansard import dims

        shape = [dims.add(lo, d, hi) for lo, d, hi in zip(low, x.type.shape, high, strict=True)]
        out = self.value("pad", shape, x.type.dtype)
        return self.append(Pad((x,), (out,), tuple(low), tuple(high), value, location=self.location))

    def scatter(
        self,
        target: Value,
        indices: Value,
        updates: Value,
        combiner: str | None = None,
        *,
        unique: bool = False,
    ) -> Value:
        """Append a Scatter; ``unique`` promises that no two rows have the same index."""
        out = self.value("scatter", target.type.shape, target.type.dtype)
        inputs = (target, indices, updates)
        return self.append(Scatter(inputs, (out,), combiner, unique, location=self.location))

    def sort(
        self, x: Value, axis: int, descending: bool = False, limit: int | None = None
    ) -> tuple[Value, Value]:
        """Append a Sort; returns values and indices."""
        shape = list(x.type.shape)
        if limit is not None:
            shape[axis] = limit
        outs = (self.value("sorted", shape, x.type.dtype), self.value("order", shape, DType.I64))
        self.append(Sort((x,), outs, axis, descending, limit, location=self.location))
        return outs

    def scan(self, x: Value, axis: int, combiner: str = "add", inclusive: bool = True) -> Value:
        """Append a Scan."""
        out = self.value("scan", x.type.shape, x.type.dtype)
        return self.append(Scan((x,), (out,), axis, combiner, inclusive, location=self.location))

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        mask: Value | None,
        scale: float,
        causal: bool = False,
        softcap: float | None = None,
    ) -> Value:
        """Append an Attention."""
        out = self.value("attention", (*q.type.shape[:3], v.type.shape[3]), q.type.dtype)
        inputs = (q, k, v) if mask is None else (q, k, v, mask)
        return self.append(Attention(inputs, (out,), scale, causal, softcap, location=self.location))

    def assert_true(self, condition: Value, message: str) -> None:
        """Append an Assert of a bool tensor."""
        self.append(Assert((condition,), (), message, location=self.location))

    def assert_indices(self, indices: Value, op: str, low: DimLike, high: DimLike) -> None:
        """Append an Assert of indices that an op named ``op`` reads: all are in ``low … high - 1``."""
        self.append(Assert((indices,), (), op, (low, high), location=self.location))

    def build(self, outputs: Iterable[Value], output_names: Sequence[str] = ()) -> Graph:
        """The finished, verified graph."""
        from mansard.ir.verify import verify

        outs = tuple(outputs)
        names = tuple(output_names) or tuple(v.name for v in outs)
        graph = Graph(
            self.name,
            tuple(self._inputs),
            outs,
            tuple(self._ops),
            dict(self._constants),
            tuple(self._states),
            names,
        )
        verify(graph)
        return graph
