"""Recurrent networks unrolled over their steps: a cell is traced once, and its ops are copied for each step.

PyTorch's decompositions trace every step anew, which takes a tenth of a second a step of each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mansard.errors import UnsupportedOpError
from mansard.frontends.pytorch.expansion.recurrent_ops import OPS
from mansard.frontends.pytorch.expansion.splice import replace_results, splice, trace
from mansard.frontends.pytorch.inserter import Inserter
from mansard.frontends.pytorch.locations import location_of

aten = torch.ops.aten

Table = Mapping[Any, Callable[..., Any]]
Cell = Callable[..., tuple[Tensor, ...]]


def _lstm_cell(
    x: Tensor, h: Tensor, c: Tensor, weight: Tensor, bias: Tensor | None, projection: Tensor | None
) -> tuple[Tensor, ...]:
    """Of torch.nn.LSTM. ``x`` is the input's product with its weights, ``weight`` is (hidden, 4 * width)."""
    i, f, g, o = (_product(h, weight, bias) + x).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if projection is None else torch.mm(h, projection)), c


def _gru_cell(
    x: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None, projection: None
) -> tuple[Tensor, ...]:
    """Of torch.nn.GRU; ``weight`` is (hidden, 3 * hidden)."""
    ours, inputs = _product(h, weight, bias).chunk(3, 1), x.chunk(3, 1)
    reset, update = (ours[0] + inputs[0]).sigmoid(), (ours[1] + inputs[1]).sigmoid()
    new = (inputs[2] + ours[2] * reset).tanh()
    return ((h - new) * update + new,)


def _rnn_cell(function: Callable[[Tensor], Tensor]) -> Cell:
    def cell(
        x: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None, projection: None
    ) -> tuple[Tensor, ...]:
        return (function(_product(h, weight, bias) + x),)

    return cell


def _product(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(h, weight) if bias is None else torch.addmm(bias, h, weight)


_BY_NAME: dict[str, Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": _rnn_cell(torch.tanh),
    "rnn_relu": _rnn_cell(torch.relu),
}
_CELLS: dict[Any, Cell] = {
    op: cell for name, cell in _BY_NAME.items() for op in (getattr(aten, name).input, OPS[name])
}
RECURRENT_OPS = frozenset(_CELLS)
"""Packed sequences (the overloads ``data``) are left to PyTorch's decompositions."""


@dataclass(frozen=True)
class _Direction:
    """The parameters of one direction of a layer, as nodes."""

    input_weight: Any
    state_weight: Any
    input_bias: Any = None
    state_bias: Any = None
    projection: Any = None


def unroll(module: torch.fx.GraphModule, table: Table) -> bool:
    """Replace the recurrent networks in a decomposed graph; whether there are any.

    ``table`` has the decompositions of what a cell consists of. Raises UnsupportedOpError where the number of
    steps is not known.
    """
    nodes = [n for n in module.graph.nodes if n.target in RECURRENT_OPS]
    for node in nodes:
        _Unroller(module, node, table).replace()
    return bool(nodes)


class _Unroller:
    def __init__(self, module: torch.fx.GraphModule, node: Any, table: Table) -> None:
        self._module, self._node, self._table = module, node, table
        self._cell = _CELLS[node.target]
        self._inserter = Inserter(module.graph, node)

    def replace(self) -> None:
        x, states, parameters, biases, layers, dropout, train, both, batch_first = self._node.args
        if train and dropout and layers > 1:
            raise self._error("dropout of training draws random numbers, which are not supported")
        if batch_first:
            x = self._call(aten.permute.default, x, [1, 0, 2])
        states = list(states) if isinstance(states, (list, tuple)) else [states]
        directions = _directions(parameters, biases, layers * (2 if both else 1))
        finals: list[list[Any]] = [[] for _ in states]
        for layer in range(layers):
            outputs = []
            for number in range(layer * (1 + both), (layer + 1) * (1 + both)):
                initial = [self._call(aten.select.int, s, 0, number) for s in states]
                y, last = self._direction(x, initial, directions[number], backwards=bool(number % 2 and both))
                outputs.append(y)
                for final, state in zip(finals, last, strict=True):
                    final.append(state)
            x = self._call(aten.cat.default, outputs, 2) if both else outputs[0]
        if batch_first:
            x = self._call(aten.permute.default, x, [1, 0, 2])
        replace_results(self._module, self._node, [x, *(self._call(aten.cat.default, f, 0) for f in finals)])

    def _direction(
        self, x: Any, states: list[Any], weights: _Direction, backwards: bool
    ) -> tuple[Any, list[Any]]:
        """The outputs (steps, batch, width) and the last states, each (1, batch, width)."""
        steps = x.meta["val"].shape[0]
        if not isinstance(steps, int):
            raise self._error("its number of steps is not known: it is unrolled; make that dim static")
        products = self._traced(functional.linear, [x, weights.input_weight, weights.input_bias])
        (products,) = splice(self._module, self._node, *products)
        matrix = self._call(aten.permute.default, weights.state_weight, [1, 0])
        projection = (
            None
            if weights.projection is None
            else self._call(aten.permute.default, weights.projection, [1, 0])
        )
        rows: list[Any] = [None] * steps
        last: list[Any] = []
        part: Any = None
        row: Any = None
        for step in reversed(range(steps)) if backwards else range(steps):
            row = (
                self._call(aten.select.int, products, 0, step)
                if row is None
                else self._like(row, (products, 0, step))
            )
            operands = [row, *states, matrix, weights.state_bias, projection]
            if part is None:
                part, _ = self._traced(self._step, operands)
            results = splice(self._module, self._node, part, [a for a in operands if a is not None])
            states, last = results[: len(states)], results[len(states) :]
            rows[step] = last[0]
        return self._call(aten.cat.default, rows, 0), last

    def _step(self, *operands: Any) -> list[Tensor]:
        """The states after a step, and the same with a dim for the steps."""
        states = self._cell(*operands)
        return [*states, *(s.unsqueeze(0) for s in states)]

    def _traced(
        self, function: Callable[..., Any], operands: Sequence[Any]
    ) -> tuple[torch.fx.GraphModule, list[Any]]:
        """The decomposed ops of a function of nodes and Nones, and its operands that are nodes."""
        nodes = [a for a in operands if a is not None]

        def of_tensors(*tensors: Tensor) -> Any:
            rest = iter(tensors)
            return function(*(None if a is None else next(rest) for a in operands))

        return trace(of_tensors, nodes, self._table), nodes

    def _call(self, target: Any, *args: Any) -> Any:
        with self._module.graph.inserting_before(self._node):
            return self._inserter.call(target, *args)

    def _like(self, node: Any, args: tuple[Any, ...]) -> Any:
        """The same op of other operands of the same types."""
        with self._module.graph.inserting_before(self._node):
            copy = self._module.graph.call_function(node.target, args)
        copy.meta = dict(node.meta)
        return copy

    def _error(self, reason: str) -> UnsupportedOpError:
        name = str(self._node.target).split(".")[1]
        return UnsupportedOpError(f"aten.{name}", location_of(self._node), reason)


def _directions(parameters: Sequence[Any], biases: bool, count: int) -> list[_Direction]:
    """Of a flat list, in which each direction has two weights, perhaps two biases, perhaps a projection."""
    size = len(parameters) // count
    directions = []
    for start in range(0, len(parameters), size):
        input_weight, state_weight, *rest = parameters[start : start + size]
        input_bias, state_bias = (rest.pop(0), rest.pop(0)) if biases else (None, None)
        projection = rest[0] if rest else None
        directions.append(_Direction(input_weight, state_weight, input_bias, state_bias, projection))
    return directions
