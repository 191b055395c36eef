"""Scales of channels that move from values around norms into constants, so that one range fits all channels.

A few channels of the values around norms are often many times larger than the others, and one step for all
leaves those no precision. Division of each channel by a scale of its own, which the constants on both sides
take in, changes no result (Xiao et al., "SmoothQuant", 2022: ``s_j = max|X_j|**a / max|W_j|**(1 - a)``).
Before::

    %h: 5x64xf32 = generic (…) {%n[d0, d1] * %gamma[d1]}
    %p: 5x64xf32 = generic (d0:5, d1:64 | d2:64) add {%h[d0, d2] * %w[d1, d2]}
    %t: 5x64xf32 = generic (…) {%p[d0, d1] + %h[d0, d1]}
    %m: 5x1xf32 = generic (d0:5, d1:1 | d2:64) add {%t[d0, d2]}

After, where ``%h``, ``%p`` and ``%t`` are what they were, divided by ``%s``::

    %h: 5x64xf32 = generic (…) {%n[d0, d1] * %gamma.scaled[d1]}                     gamma / s
    %p: 5x64xf32 = generic (d0:5, d1:64 | d2:64) add {%h[d0, d2] * %w.scaled[d1, d2]}    w[i, j] * s_j / s_i
    %t: 5x64xf32 = generic (…) {%p[d0, d1] + %h[d0, d1]}
    %t.whole: 5x64xf32 = generic (…) {%t[d0, d1] * %s[d1]}
    %m: 5x1xf32 = generic (d0:5, d1:1 | d2:64) add {%t.whole[d0, d2]}

Values that sums join share their scales. These lie along the last axis: convolutions keep what they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mansard.dtypes import DType
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Apply, Arg, walk
from mansard.ir.types import Constant, IndexMap, TensorType, Value
from mansard.quantisation.calibration import Runner
from mansard.quantisation.layers import parallel_axes
from mansard.quantisation.norms import normalised
from mansard.quantisation.parameters import Array

F32 = DType.F32
SCALED = ".scaled("
"""What the key of a constant with scales has behind that of the constant."""
SMALLEST = 1e-5
"""The smallest maximum of a channel, as a part of the largest channel's."""


@dataclass(frozen=True, eq=False)
class Basis:
    """Values whose channels, along their last axis, have common scales: sums, their terms, and reshapes."""

    values: tuple[Value, ...]

    @property
    def channels(self) -> int:
        """Of each value."""
        size = self.values[0].type.shape[-1]
        assert isinstance(size, int)
        return size


def smoothed(
    graph: Graph, calls: Sequence[Sequence[Array]], strength: float
) -> tuple[Graph, tuple[Basis, ...]]:
    """The graph with the scales of channels around norms in its constants; ``strength`` is the formula's
    ``a``: 0 evens out the weights' channels, 1 those of values. Its results are the same but for rounding.
    Beside it the sets of values that have such scales now."""
    found = bases(graph)
    largest = _largest(graph, found, calls)
    weights = {basis: _weight_maxima(graph, basis) for basis in found}
    scales = {}
    for basis in found:
        ratio = largest[basis] ** strength / weights[basis] ** (1 - strength)
        scales[basis] = np.asarray(ratio / np.exp(np.log(ratio).mean()), np.float32)
    return (_Rescaler(graph, scales).run() if scales else graph), tuple(found)


# What has common scales -----------------------------------------------------------------------------
def bases(graph: Graph) -> list[Basis]:
    """The sets of values around norms whose scales constants can take in: a norm reads or makes one of them,
    and a product with a constant reads or makes one."""
    parent: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while parent.setdefault(value, value) is not value:
            value = parent[value]
        return value

    for op in graph.ops:
        for value in _joined(op, graph):
            parent[root(value)] = root(op.outputs[0])
    members: dict[Value, list[Value]] = {}
    for value in (v for op in graph.ops for v in op.outputs):
        if _has_channels(value):
            members.setdefault(root(value), []).append(value)
    read = {value for value, norm in normalised(graph).items() if value is norm}
    users, producers = graph.users(), graph.producers()
    found = []
    for values in members.values():
        made = [producers.get(value) for value in values]
        norm = not read.isdisjoint(values) or any(_channel_factor(op, graph) is not None for op in made)
        product = any(_weight_axis(op, v, graph) is not None for v in values for op in users.get(v, []))
        product = product or any(_output_axis(op, graph) is not None for op in made)
        if norm and product:
            found.append(Basis(tuple(values)))
    return found


def _has_channels(value: Value) -> bool:
    shape = value.type.shape
    return value.type.dtype is F32 and len(shape) > 1 and isinstance(shape[-1], int) and shape[-1] > 1


def _joined(op: Op, graph: Graph) -> list[Value]:
    """The operands of an op that have the channels of its result, in a sum or a reshape."""
    if len(op.outputs) != 1 or not _has_channels(op.outputs[0]):
        return []
    shape, begun = op.outputs[0].type.shape, (*graph.inputs, *(s.before for s in graph.states))
    if any(v in begun for v in op.inputs):
        return []
    if isinstance(op, Reshape):
        return [op.inputs[0]] if op.inputs[0].type.shape[-1:] == shape[-1:] else []
    if not isinstance(op, Generic) or op.combiner is not None or not _is_plain(op, "add"):
        return []
    values = [v for v in op.inputs if v not in graph.constants]
    identity = IndexMap.identity(op.rank)
    whole = all(v.type == op.output.type and op.maps[i] == identity for i, v in _operands(op, values))
    constant = all(_is_along(op, i) for i, v in enumerate(op.inputs) if v in graph.constants)
    return values if values and whole and constant else []


def _operands(op: Generic, values: Sequence[Value]) -> list[tuple[int, Value]]:
    return [(i, v) for i, v in enumerate(op.inputs) if v in values]


def _is_plain(op: Generic, name: str) -> bool:
    """Whether a body applies an operation to two different operands."""
    body = op.body
    plain = isinstance(body, Apply) and body.op == name and len(op.inputs) == 2
    return (
        plain and {n.index for n in walk(body) if isinstance(n, Arg)} == {0, 1} and len(list(walk(body))) == 3
    )


def _is_along(op: Generic, operand: int) -> bool:
    """Whether the last axis of an operand is the channel of each result, and nothing else is."""
    index_map, shape = op.maps[operand], op.inputs[operand].type.shape
    if index_map is None or index_map.fill is not None or not shape or shape[-1] != op.output.type.shape[-1]:
        return False
    channel = op.output.type.rank - 1
    reads = [any(d == channel for d, _ in result.terms) for result in index_map.results]
    return index_map.results[-1].single == channel and not any(reads[:-1])


def _channel_factor(op: Op | None, graph: Graph) -> int | None:
    """The operand of a plain multiplication that is a constant factor of each channel, as norms end in."""
    if not isinstance(op, Generic) or op.combiner is not None or not _is_plain(op, "mul"):
        return None
    constants = [i for i, v in enumerate(op.inputs) if v in graph.constants]
    return constants[0] if len(constants) == 1 and _is_along(op, constants[0]) else None


def _weight(op: Op | None, graph: Graph) -> int | None:
    """The constant of a product of a value with one, each of whose elements it reads alike."""
    if not isinstance(op, Generic) or not op.is_contraction or not _is_plain(op, "mul"):
        return None
    constants = [i for i, v in enumerate(op.inputs) if v in graph.constants]
    if len(constants) != 1 or op.inputs[constants[0]].type.dtype is not F32:
        return None
    return constants[0] if parallel_axes(op, constants[0]) is not None else None


def _axis(op: Generic, weight: int, dim: int | None) -> int | None:
    """The axis of a weight that one dim walks alone."""
    index_map = op.maps[weight]
    assert index_map is not None
    found = [axis for axis, result in enumerate(index_map.results) if any(d == dim for d, _ in result.terms)]
    return found[0] if len(found) == 1 and index_map.results[found[0]].single == dim else None


def _output_axis(op: Op | None, graph: Graph) -> int | None:
    """The axis of a product's weight that is the channel of its result."""
    weight = _weight(op, graph)
    if weight is None:
        return None
    assert isinstance(op, Generic)
    return _axis(op, weight, op.output.type.rank - 1)


def _weight_axis(op: Op, value: Value, graph: Graph) -> int | None:
    """The axis of a product's weight that is multiplied with the channels of a value."""
    weight = _weight(op, graph)
    if weight is None:
        return None
    assert isinstance(op, Generic)
    index_map = op.maps[1 - weight]
    if op.inputs[1 - weight] is not value or index_map is None or index_map.fill is not None:
        return None
    channel = index_map.results[-1].single
    alone = not any(d == channel for result in index_map.results[:-1] for d, _ in result.terms)
    return _axis(op, weight, channel) if channel is not None and channel >= op.rank and alone else None


# How large channels are -----------------------------------------------------------------------------
def _largest(graph: Graph, found: Sequence[Basis], calls: Sequence[Sequence[Array]]) -> dict[Basis, Array]:
    """The largest magnitude in each channel of a basis over the calls."""
    largest = {basis: np.zeros(basis.channels, np.float64) for basis in found}
    if not found:
        return largest
    with Runner(graph, [v for basis in found for v in basis.values]) as runner:
        for call in calls:
            _, values = runner.run(call)
            for basis in found:
                for value in basis.values:
                    rows = np.abs(values[value]).reshape(-1, basis.channels)
                    np.maximum(largest[basis], rows.max(axis=0, initial=0.0), out=largest[basis])
    return {basis: _positive(maxima) for basis, maxima in largest.items()}


def _weight_maxima(graph: Graph, basis: Basis) -> Array:
    """The largest magnitude in each channel of the weights that multiply values of a basis; 1 for none."""
    users, maxima = graph.users(), np.zeros(basis.channels)
    for value in basis.values:
        for op in users.get(value, []):
            if (axis := _weight_axis(op, value, graph)) is not None:
                weight = op.inputs[_weight(op, graph) or 0]
                data = np.abs(np.moveaxis(load(weight, graph.constants[weight]), axis, 0))
                np.maximum(maxima, data.reshape(basis.channels, -1).max(axis=1), out=maxima)
    return _positive(maxima) if maxima.any() else np.ones(basis.channels)


def _positive(maxima: Array) -> Array:
    return np.maximum(
        maxima, max(SMALLEST * float(maxima.max(initial=0.0)), float(np.finfo(np.float32).tiny))
    )


# The graph in those scales --------------------------------------------------------------------------
class _Rescaler:
    def __init__(self, graph: Graph, scales: Mapping[Basis, Array]) -> None:
        self.graph = graph
        self.scales = {value: scale for basis, scale in scales.items() for value in basis.values}
        self.taken = {v.name for v in graph.values()}
        self.constants = dict(graph.constants)
        self.stored: dict[tuple[object, ...], Value] = {}
        self.restored: dict[Value, Value] = {}
        self.ops: list[Op] = []

    def run(self) -> Graph:
        for op in self.graph.ops:
            self._op(op)
        outputs = tuple(self._whole(v) for v in self.graph.outputs)
        states = tuple(replace(s, after=self._whole(s.after)) for s in self.graph.states)
        needed = {v for op in self.ops for v in op.inputs} | set(outputs) | {s.after for s in states}
        constants = {v: c for v, c in self.constants.items() if v in needed}
        return replace(self.graph, ops=tuple(self.ops), outputs=outputs, states=states, constants=constants)

    def _op(self, op: Op) -> None:
        """Append an op: constants take in the scales of what it reads and of its result, other factors are
        ops of their own."""
        joined = _joined(op, self.graph)
        scale = self.scales.get(op.outputs[0]) if len(op.outputs) == 1 else None
        if joined and scale is not None:
            for operand, value in enumerate(op.inputs):
                if value not in joined:
                    assert isinstance(op, Generic)
                    op = self._with_constant(op, operand, -1, 1 / scale)
            self.ops.append(op)
            return
        weight = _weight(op, self.graph)
        inputs = [self._whole(v) for v in op.inputs]
        made: tuple[int, int] | None = None
        if weight is not None:
            assert isinstance(op, Generic)
            value, made_axis = op.inputs[1 - weight], _output_axis(op, self.graph)
            axis = _weight_axis(op, value, self.graph) if value in self.scales else None
            made = None if made_axis is None else (weight, made_axis)
            if axis is not None:
                op, inputs[1 - weight] = self._with_constant(op, weight, axis, self.scales[value]), value
                inputs[weight] = op.inputs[weight]
        elif (factor := _channel_factor(op, self.graph)) is not None:
            made = factor, -1
        op = replace(op, inputs=tuple(inputs))
        if scale is None:
            self.ops.append(op)
        elif made is not None:
            assert isinstance(op, Generic)
            self.ops.append(self._with_constant(op, *made, 1 / scale))
        else:
            value = op.outputs[0]
            raw = Value(fresh_name(self.taken, value.name), value.type)
            self.ops.append(replace(op, outputs=(raw,)))
            self._multiply(raw, value, 1 / scale)

    def _with_constant(self, op: Generic, operand: int, axis: int, factor: Array) -> Generic:
        """The op with a constant multiplied along an axis."""
        value = op.inputs[operand]
        key = (value, axis % value.type.rank, factor.tobytes())
        if key not in self.stored:
            data, shape = load(value, self.constants[value]), [1] * value.type.rank
            shape[axis] = -1
            name = f"{self.constants[value].key.split(SCALED)[0]}{SCALED}{len(self.stored)})"
            self.stored[key] = self._constant(name, data * factor.reshape(shape))
        inputs = list(op.inputs)
        inputs[operand] = self.stored[key]
        return replace(op, inputs=tuple(inputs))

    def _whole(self, value: Value) -> Value:
        """A value without scales."""
        if value not in self.scales:
            return value
        if value not in self.restored:
            out = Value(fresh_name(self.taken, f"{value.name}.whole"), value.type)
            self._multiply(value, out, self.scales[value])
            self.restored[value] = out
        return self.restored[value]

    def _multiply(self, value: Value, out: Value, factor: Array) -> None:
        """Append the multiplication of a value's channels."""
        whole = IndexMap.identity(value.type.rank)
        by = self._constant(f"{out.name}.factor", factor)
        body = Apply("mul", (Arg(0, F32), Arg(1, F32)), F32)
        maps = (whole, IndexMap(whole.results[-1:]))
        self.ops.append(Generic((value, by), (out,), value.type.shape, maps, body))

    def _constant(self, key: str, data: Array) -> Value:
        value = Value(fresh_name(self.taken, key), TensorType(data.shape, F32))
        self.constants[value] = Constant.of(data.astype(np.float32), key)
        return value
