"""Recurrent networks, unrolled over a known number of steps; their states persist across calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.functions import sigmoid
from mansard.frontends.emission.reductions import mean
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.entries import Entry
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import activated, real_tensor
from mansard.frontends.tflite.table import rule

MAX_STEPS = 4096


@dataclass(frozen=True)
class Operands:
    """Where a network's operands are; -1 for those that an operator does not have."""

    weights: int
    """Of the input; those of the state follow."""
    peepholes: int
    bias: int
    projection: int
    states: tuple[int, int]
    norms: int = -1
    extra: int = -1
    """Weights of an auxiliary input."""


def _optional(g: GraphImporter, node: Node, number: int) -> Tensor | None:
    if number < 0 or node.optional(number) is None:
        return None
    return real_tensor(g, node, number)


def _product(g: GraphImporter, x: Tensor, weight: Tensor) -> Tensor:
    """(batch, K) by (M, K)."""
    return g.matmul(x, g.transpose(weight, (1, 0)))


def _activation(node: Node) -> Callable[[Num], Num]:
    name = node.activation
    return lambda e: activated(e, name)


class Lstm:
    """An LSTM's weights, by gate: input, forget, cell, output."""

    def __init__(self, g: GraphImporter, node: Node, at: Operands) -> None:
        self.g, self.node = g, node
        self.x = [_optional(g, node, at.weights + i) for i in range(4)]
        self.h = [_optional(g, node, at.weights + 4 + i) for i in range(4)]
        peepholes = [_optional(g, node, at.peepholes + i) for i in range(3)]
        self.peephole = [peepholes[0], peepholes[1], None, peepholes[2]]
        self.bias = [_optional(g, node, at.bias + i) for i in range(4)]
        self.norm = [_optional(g, node, at.norms + i if at.norms >= 0 else -1) for i in range(4)]
        self.projection, self.projection_bias = (_optional(g, node, at.projection + i) for i in range(2))
        self.cell_clip, self.projection_clip = node.real("cell_clip"), node.real("proj_clip")
        self.function = _activation(node)

    def gate(self, i: int, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        """A gate's number before its function: i, f, g or o."""
        g, wx, wh = self.g, self.x[i], self.h[i]
        if wx is None or wh is None:
            raise self.node.fail("weights of a gate are missing")
        total = g.map(lambda a, b: a + b, _product(g, x, wx), _product(g, h, wh))
        peephole, bias, norm = self.peephole[i], self.bias[i], self.norm[i]
        if peephole is not None:
            total = g.map(lambda e, p, s: e + p * s, total, peephole, c)
        if norm is not None:
            total = self._normed(total, norm)
        return total if bias is None else g.map(lambda e, b: e + b, total, bias)

    def _normed(self, t: Tensor, scale: Tensor) -> Tensor:
        g, axes = self.g, [t.rank - 1]
        middle = mean(g, t, axes, True)
        centred = g.map(lambda e, m: e - m, t, middle)
        variance = mean(g, centred, axes, True, lambda e: e * e)
        return g.map(lambda e, v, s: e * (v + 1e-8).unary("rsqrt") * s, centred, variance, scale)

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The next state and cell."""
        g, function = self.g, self.function
        forget = g.map(sigmoid, self.gate(1, x, h, c))
        if self.x[0] is None:  # input and forget gates are coupled
            enter = g.map(lambda f: 1.0 - f, forget)
        else:
            enter = g.map(sigmoid, self.gate(0, x, h, c))
        update = g.map(function, self.gate(2, x, h, c))

        def cell(f: Num, old: Num, i: Num, new: Num) -> Num:
            total = f * old + i * new
            return total.max(-self.cell_clip).min(self.cell_clip) if self.cell_clip > 0 else total

        c = g.map(cell, forget, c, enter, update)
        out = g.map(lambda o, s: sigmoid(o) * function(s), self.gate(3, x, h, c), c)
        if self.projection is not None:
            out = _product(g, out, self.projection)
            if self.projection_bias is not None:
                out = g.map(lambda e, b: e + b, out, self.projection_bias)
            limit = self.projection_clip
            out = g.map(lambda e: e.max(-limit).min(limit), out) if limit > 0 else out
        return out, c


def _steps(node: Node, x: Tensor, axis: int) -> int:
    count = x.shape[axis]
    if not isinstance(count, int) or count > MAX_STEPS:
        raise node.fail(f"a sequence of {count} steps; a number up to {MAX_STEPS} is needed")
    return count


def _refuse_stored(node: Node) -> None:
    if node.scaled(0) is not None:
        raise node.fail("stored activations")


def _assign(g: GraphImporter, node: Node, number: int, tensor: Tensor) -> None:
    index = node.operator.inputs[number]
    g.variables.assign(f"{node.subgraph.index}.{index}", tensor, node.info(number))


def _run_lstm(
    g: GraphImporter, node: Node, x: Tensor, at: Operands, axis: int, *, backwards: bool = False
) -> Tensor:
    """The outputs of all steps along ``axis``; the states are updated."""
    network = Lstm(g, node, at)
    h, c = (node.tensor(i) for i in at.states)
    count = _steps(node, x, axis)
    rows: list[Tensor] = [h] * count
    for step in reversed(range(count)) if backwards else range(count):
        h, c = network.step(g.take(x, axis, step), h, c)
        rows[step] = h
    for number, state in zip(at.states, (h, c), strict=True):
        _assign(g, node, number, state)
    return g.stack(rows, axis)


@rule("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(g: GraphImporter, node: Node) -> Tensor:
    """An LSTM over (batch, steps, input) or, time-major, (steps, batch, input)."""
    _refuse_stored(node)
    if node.flag("diagonal_recurrent_tensors"):
        raise node.fail("diagonal recurrent weights")
    at = Operands(1, 9, 12, 16, (18, 19), 20 if len(node.inputs) > 20 else -1)
    return _run_lstm(g, node, node.tensor(0), at, 0 if node.flag("time_major") else 1)


@rule("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(g: GraphImporter, node: Node) -> Sequence[Entry]:
    """LSTMs over a sequence in both directions."""
    _refuse_stored(node)
    if len(node.inputs) > 39 and node.optional(39) is not None:
        raise node.fail("an auxiliary input")
    axis = 0 if node.flag("time_major") else 1
    x = node.tensor(0)
    forward = _run_lstm(g, node, x, Operands(1, 9, 12, 16, (35, 36)), axis)
    back = _run_lstm(g, node, x, Operands(18, 26, 29, 33, (37, 38)), axis, backwards=True)
    return [g.concat([forward, back], 2)] if node.flag("merge_outputs") else [forward, back]


@rule("LSTM")
def lstm_step(g: GraphImporter, node: Node) -> Sequence[Entry | None]:
    """One step: of the full cell, or of the basic one with joined weights."""
    _refuse_stored(node)
    if node.integer("kernel_type") == 1:
        return _basic(g, node)
    at = Operands(1, 9, 12, 16, (18, 19), 20 if len(node.inputs) > 20 else -1)
    h, c = Lstm(g, node, at).step(node.tensor(0), node.tensor(18), node.tensor(19))
    _assign(g, node, 18, h)
    _assign(g, node, 19, c)
    return [None] * (len(node.operator.outputs) - 1) + [h]


def _basic(g: GraphImporter, node: Node) -> Sequence[Entry]:
    """Operands are input, previous output, weights, bias and previous cell; gates i, g, f, o."""
    x, h, weight, bias, c = (real_tensor(g, node, i) for i in range(5))
    joined = g.concat([x, h], 1)
    total = g.map(lambda e, b: e + b, _product(g, joined, weight), bias)
    width = int(str(c.shape[1]))
    i, update, f, o = (g.part(total, 1, k * width, width) for k in range(4))
    cell = g.map(lambda i, u, f, c: sigmoid(i) * u.unary("tanh") + sigmoid(f) * c, i, update, f, c)
    out = g.map(lambda o, c: sigmoid(o) * c.unary("tanh"), o, cell)
    return [out, cell, joined, total]


# Plain recurrent networks ---------------------------------------------------------------------
def _run_rnn(
    g: GraphImporter, node: Node, x: Tensor, first: int, axis: int, *, backwards: bool = False
) -> Tensor:
    """The outputs of all steps: operands are weights, recurrent weights, bias and state."""
    weight, recurrent, bias = (real_tensor(g, node, first + i) for i in range(3))
    h, function = node.tensor(first + 3), _activation(node)
    count = _steps(node, x, axis)
    rows: list[Tensor] = [h] * count
    for step in reversed(range(count)) if backwards else range(count):
        products = _product(g, g.take(x, axis, step), weight), _product(g, h, recurrent)
        h = g.map(lambda a, b, c: function(a + b + c), *products, bias)
        rows[step] = h
    _assign(g, node, first + 3, h)
    return g.stack(rows, axis)


@rule("RNN")
def rnn(g: GraphImporter, node: Node) -> Tensor:
    """One step."""
    _refuse_stored(node)
    x = node.tensor(0)
    return g.take(_run_rnn(g, node, g.unsqueeze(x, 0), 1, 0), 0, 0)


@rule("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(g: GraphImporter, node: Node) -> Tensor:
    """A recurrent network over a sequence."""
    _refuse_stored(node)
    return _run_rnn(g, node, node.tensor(0), 1, 0 if node.flag("time_major") else 1)


@rule("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(g: GraphImporter, node: Node) -> Sequence[Entry]:
    """Recurrent networks over a sequence in both directions."""
    _refuse_stored(node)
    if len(node.inputs) > 9 and node.optional(9) is not None:
        raise node.fail("an auxiliary input")
    axis, x = 0 if node.flag("time_major") else 1, node.tensor(0)
    forward = _run_rnn(g, node, x, 1, axis)
    back = _run_rnn(g, node, x, 5, axis, backwards=True)
    return [g.concat([forward, back], 2)] if node.flag("merge_outputs") else [forward, back]


@rule("SVDF")
def svdf(g: GraphImporter, node: Node) -> Tensor:
    """Filters of rank one over features and time; the state holds the features of earlier calls."""
    _refuse_stored(node)
    x, features, time = node.tensor(0), real_tensor(g, node, 1), real_tensor(g, node, 2)
    bias, state, rank = node.optional(3), node.tensor(4), node.integer("rank")
    batch, (filters, memory) = x.shape[0], time.shape
    old = g.reshape(state, (batch, filters, memory))
    newest = g.unsqueeze(_product(g, x, features), 2)
    kept = g.part(old, 2, 1, int(str(memory)) - 1)
    new = g.concat([kept, newest], 2)
    _assign(g, node, 4, g.reshape(new, state.shape))
    filtered = g.reduce(g.map(lambda s, w: s * w, new, time), [2], "add")
    units = int(str(filters)) // rank
    total = g.reduce(g.reshape(filtered, (batch, units, rank)), [2], "add")
    function = _activation(node)
    if bias is None:
        return g.map(function, total)
    return g.map(lambda e, b: function(e + b), total, bias)
