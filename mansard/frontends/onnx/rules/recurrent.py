"""Recurrent networks, unrolled over a known number of steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.functions import sigmoid, softplus
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.entries import Entry
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import rule

Function = Callable[[Num], Num]


def _activation(name: str, alpha: float | None, beta: float | None) -> Function:
    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    a, b = alpha, beta
    table: dict[str, Function] = {
        "relu": lambda x: x.max(0.0),
        "tanh": lambda x: x.unary("tanh"),
        "sigmoid": sigmoid,
        "affine": lambda x: x * given(a, 1.0) + given(b, 0.0),
        "leakyrelu": lambda x: (x < 0.0).select(x * given(a, 0.01), x),
        "thresholdedrelu": lambda x: (x > given(a, 1.0)).select(x, 0.0),
        "scaledtanh": lambda x: (x * given(b, 1.0)).unary("tanh") * given(a, 1.0),
        "hardsigmoid": lambda x: (x * given(a, 0.2) + given(b, 0.5)).max(0.0).min(1.0),
        "elu": lambda x: (x < 0.0).select(x.unary("expm1") * given(a, 1.0), x),
        "softsign": lambda x: x / (1.0 + x.unary("abs")),
        "softplus": softplus,
    }
    return table[name.lower()]


@dataclass(frozen=True)
class Cell:
    """One direction of a network: its weights, activations and limits."""

    node: Node
    weights: Tensor
    """(gates * hidden, input)."""
    recurrence: Tensor
    bias: tuple[Tensor, Tensor] | None
    """Of the input's product and of the state's."""
    peephole: tuple[Tensor, Tensor, Tensor] | None
    functions: tuple[Function, ...]
    hidden: int
    clip: float | None

    def limited(self, x: Num) -> Num:
        """A pre-activation within the clip."""
        return x if self.clip is None else x.max(-self.clip).min(self.clip)


_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@rule("RNN", "GRU", "LSTM")
def recurrent(g: GraphImporter, node: Node) -> list[Entry | None]:
    """Both directions, over (steps, batch, input) or, in layout 1, (batch, steps, input)."""
    x = node.tensor(0)
    layout = node.integer("layout")
    x = g.transpose(x, (1, 0, 2)) if layout else x
    steps, batch = x.shape[0], x.shape[1]
    if not isinstance(steps, int):
        raise node.fail(f"a sequence of {steps} steps; a number is needed")
    hidden = node.integer("hidden_size") or int(str(node.tensor(2).shape[-1]))
    count = int(str(node.tensor(1).shape[0]))
    lengths = node.optional(4)
    direction = node.text("direction", "forward")
    ys: list[Tensor] = []
    finals: list[list[Tensor]] = []
    for d in range(count):
        cell = _cell(g, node, d, hidden)
        backwards = direction == "reverse" or d == 1
        states = []
        for operand in (5, 6) if node.op == "LSTM" else (5,):
            initial = node.optional(operand)
            if initial is None:
                states.append(g.full((batch, hidden), 0, x.dtype))
            else:
                initial = g.transpose(initial, (1, 0, 2)) if layout else initial
                states.append(g.take(initial, 0, d))
        rows, states = _unrolled(g, cell, x, states, lengths, backwards)
        ys.append(g.stack(rows, 0))
        finals.append(states)
    y = g.stack(ys, 1)  # (steps, directions, batch, hidden)
    last = [g.stack([f[i] for f in finals], 0) for i in range(len(finals[0]))]
    if layout:
        y = g.transpose(y, (2, 0, 1, 3))
        last = [g.transpose(t, (1, 0, 2)) for t in last]
    return [y, *last]


def _cell(g: GraphImporter, node: Node, d: int, hidden: int) -> Cell:
    gates = _GATES[node.op]
    bias = node.optional(3)
    halves = None
    if bias is not None:
        flat = g.take(bias, 0, d)
        width = gates * hidden
        halves = (g.part(flat, 0, 0, width), g.part(flat, 0, width, width))
    peephole = node.optional(7) if node.op == "LSTM" else None
    parts = None
    if peephole is not None:
        flat = g.take(peephole, 0, d)
        parts = (
            g.part(flat, 0, 0, hidden),
            g.part(flat, 0, hidden, hidden),
            g.part(flat, 0, 2 * hidden, hidden),
        )
    defaults = _DEFAULTS[node.op]
    stated = node.attribute("activations")
    names = [n.decode() if isinstance(n, bytes) else n for n in stated] if stated else defaults * 2
    alphas, betas = node.attribute("activation_alpha") or [], node.attribute("activation_beta") or []
    each = len(defaults)
    functions = tuple(
        _activation(
            names[k],
            float(alphas[k]) if k < len(alphas) else None,
            float(betas[k]) if k < len(betas) else None,
        )
        for k in range(d * each, (d + 1) * each)
    )
    clip = node.real("clip") if node.has("clip") else None
    return Cell(
        node,
        g.take(node.tensor(1), 0, d),
        g.take(node.tensor(2), 0, d),
        halves,
        parts,
        functions,
        hidden,
        clip,
    )


def _unrolled(
    g: GraphImporter, cell: Cell, x: Tensor, states: list[Tensor], lengths: Tensor | None, backwards: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """The states after every step, in the order of the input, and the last ones."""
    steps = int(str(x.shape[0]))
    products = g.matmul(x, g.transpose(cell.weights, (1, 0)))
    if cell.bias is not None:
        products = g.map(lambda p, b: p + b, products, cell.bias[0])
    transposed = g.transpose(cell.recurrence, (1, 0))
    rows: list[Tensor] = [x] * steps
    for step in reversed(range(steps)) if backwards else range(steps):
        new = _STEPS[cell.node.op](g, cell, g.take(products, 0, step), transposed, states)
        if lengths is None:
            states, rows[step] = new, new[0]
            continue
        column = g.reshape(lengths, (*lengths.shape, 1))
        states = [
            g.map(lambda n, b, a, s=step: (n.cast(DType.I64) > s).select(b, a), column, b, a)
            for a, b in zip(states, new, strict=True)
        ]
        rows[step] = g.map(lambda n, b, s=step: (n.cast(DType.I64) > s).select(b, 0.0), column, new[0])
    return rows, states


def _gates(g: GraphImporter, cell: Cell, t: Tensor) -> list[Tensor]:
    return [g.part(t, t.rank - 1, k * cell.hidden, cell.hidden) for k in range(_GATES[cell.node.op])]


def _recurrence(g: GraphImporter, cell: Cell, h: Tensor, transposed: Tensor) -> Tensor:
    product = g.matmul(h, transposed)
    return product if cell.bias is None else g.map(lambda p, b: p + b, product, cell.bias[1])


def _rnn(g: GraphImporter, cell: Cell, x: Tensor, transposed: Tensor, states: list[Tensor]) -> list[Tensor]:
    f = cell.functions[0]
    return [g.map(lambda a, b: f(cell.limited(a + b)), x, _recurrence(g, cell, states[0], transposed))]


def _gru(g: GraphImporter, cell: Cell, x: Tensor, transposed: Tensor, states: list[Tensor]) -> list[Tensor]:
    f, h_function = cell.functions
    h = states[0]
    xz, xr, xh = _gates(g, cell, x)
    hz, hr, hh = _gates(g, cell, _recurrence(g, cell, h, transposed))
    z = g.map(lambda a, b: f(cell.limited(a + b)), xz, hz)
    r = g.map(lambda a, b: f(cell.limited(a + b)), xr, hr)
    if cell.node.integer("linear_before_reset"):
        new = g.map(lambda a, b, c: h_function(cell.limited(a + c * b)), xh, hh, r)
    else:
        gated = g.map(lambda a, b: a * b, r, h)
        column = g.part(transposed, 1, 2 * cell.hidden, cell.hidden)
        product = g.matmul(gated, column)
        if cell.bias is not None:
            product = g.map(
                lambda p, b: p + b, product, g.part(cell.bias[1], 0, 2 * cell.hidden, cell.hidden)
            )
        new = g.map(lambda a, b: h_function(cell.limited(a + b)), xh, product)
    return [g.map(lambda u, n, old: (1.0 - u) * n + u * old, z, new, h)]


def _lstm(g: GraphImporter, cell: Cell, x: Tensor, transposed: Tensor, states: list[Tensor]) -> list[Tensor]:
    f, g_function, h_function = cell.functions
    h, c = states
    xs, hs = _gates(g, cell, x), _gates(g, cell, _recurrence(g, cell, h, transposed))
    i, o, forget, update = (g.map(lambda a, b: a + b, p, q) for p, q in zip(xs, hs, strict=True))
    pi, po, pf = cell.peephole or (None, None, None)

    def looked(t: Tensor, weight: Tensor | None, state: Tensor) -> Tensor:
        return t if weight is None else g.map(lambda e, w, s: e + w * s, t, weight, state)

    i, forget = looked(i, pi, c), looked(forget, pf, c)
    coupled = bool(cell.node.integer("input_forget"))

    def updated(i: Num, forget: Num, update: Num, c: Num) -> Num:
        gate = f(cell.limited(i))
        kept = 1.0 - gate if coupled else f(cell.limited(forget))
        return kept * c + gate * g_function(cell.limited(update))

    new = g.map(updated, i, forget, update, c)
    o = looked(o, po, new)
    return [g.map(lambda o, c: f(cell.limited(o)) * h_function(c), o, new), new]


_STEPS = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}
