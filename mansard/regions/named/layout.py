"""Layouts: a graph with all images channels-first or channels-last, and few transposes.

A value may lie in memory with its dims in several orders, its *forms*. Convolutions, pools and resizes make
and read the form of their layout; maps take the form that their operands have; a transpose only gives a form
another name. A Transpose op is written where a form is asked for that nothing has made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mansard.ir.types import Value
from mansard.regions.named.builder import static
from mansard.regions.named.editor import Editor
from mansard.regions.named.graph import NamedGraph
from mansard.regions.named.ops import (
    Broadcast,
    Concat,
    Conv,
    Elementwise,
    Gather,
    NamedOp,
    Pad,
    Pool,
    Recode,
    Reduce,
    Reshape,
    Resize,
    Slice,
    Softmax,
    Transpose,
)

Order = tuple[int, ...]
"""The dims of a value in the order in which a form has them."""
_T = TypeVar("_T")


def with_layout(graph: NamedGraph, *, channels_first: bool) -> NamedGraph:
    """The graph with its convolutions, pools and resizes in a layout; inputs and outputs stay as they are."""
    return _Layout(graph, channels_first).run()


class _Layout:
    def __init__(self, graph: NamedGraph, channels_first: bool) -> None:
        self.graph, self.channels_first = graph, channels_first
        self.editor = Editor(replace(graph, ops=()))
        self.forms: dict[Value, dict[Order, Value]] = {}
        self.made: dict[Value, Order] = {}
        """The form that the op of a value makes."""

    def run(self) -> NamedGraph:
        for op in self.graph.ops:
            self.editor.sources = op.sources
            if isinstance(op, Transpose) and op.inputs[0] not in self.graph.constants:
                self._transposed(op)
            else:
                self._placed(op)
        self.editor.outputs = [self._output(value) for value in self.graph.outputs]
        return self.editor.graph()

    # Forms ----------------------------------------------------------------------------------
    def form(self, value: Value, order: Order) -> Value:
        """A value with its dims in an order."""
        forms = self.forms.setdefault(value, {_identity(value): value})
        if order not in forms:
            source_order, source = next(iter(forms.items()))
            permutation = [source_order.index(d) for d in order]
            forms[order] = self.editor.transpose(source, permutation)
            if source in self.editor.encodings:
                self.editor.encodings[forms[order]] = _permuted(self.editor.encodings[source], permutation)
        return forms[order]

    def _order(self, value: Value) -> Order:
        return self.made.get(value, _identity(value))

    def _make(self, op: NamedOp, order: Order, **changes: Any) -> None:
        """An op whose result has its dims in an order."""
        value = op.output
        output = value
        if order != _identity(value):
            shape = static(value.type.shape)
            output = self.editor.value(value.name, [shape[d] for d in order], value.type.dtype)
            if value in self.graph.encodings:
                self.editor.encodings[output] = _permuted(self.graph.encodings[value], order)
        self.editor.put(replace(op, output=output, **changes))
        self.forms[value] = {order: output}
        self.made[value] = order

    def _output(self, value: Value) -> Value:
        """A value of the graph under its own name."""
        formed = self.form(value, _identity(value))
        if formed is not value:
            op = self.editor.producer(formed)
            self.editor.put(Reshape((formed,), value) if op is None else replace(op, output=value))
        return value

    # Ops ------------------------------------------------------------------------------------
    def _transposed(self, op: Transpose) -> None:
        (x,) = op.inputs
        encodings = self.graph.encodings
        before = encodings.get(x)
        moved = before and _permuted(before, op.permutation)
        if op.output.type.dtype is not x.type.dtype or encodings.get(op.output) != moved or op.clamp:
            # It changes the numbers, too, which another name for a form does not.
            between = self.editor.value(op.output.name, static(op.output.type.shape), x.type.dtype)
            if moved is not None:
                self.editor.encodings[between] = moved
            self._renamed(x, between, op.permutation)
            self._placed(Recode((between,), op.output, sources=op.sources, clamp=op.clamp))
            return
        self._renamed(x, op.output, op.permutation)

    def _renamed(self, x: Value, output: Value, permutation: Sequence[int]) -> None:
        """The forms of a transposed value: those of x, by other names."""
        made = self.forms.setdefault(x, {_identity(x): x})
        place = {d: i for i, d in enumerate(permutation)}
        self.forms[output] = {tuple(place[d] for d in order): form for order, form in made.items()}
        self.made[output] = tuple(place[d] for d in self._order(x))

    def _placed(self, op: NamedOp) -> None:
        for kind, rule in _RULES.items():
            if isinstance(op, kind):
                rule(self, op)
                return
        inputs = tuple(self.form(value, _identity(value)) for value in op.inputs)
        self._make(op, _identity(op.output), inputs=inputs)

    def _image(self, op: Any) -> None:
        """A convolution, pool or resize: in the layout."""
        x, *others = op.inputs
        order = _identity(x)
        if self.channels_first != op.channels_first:
            last = len(order) - 1
            order = (0, last, *range(1, last)) if self.channels_first else (0, *range(2, last + 1), 1)
        weights = [self.form(w, order if w.type.rank == len(order) else _identity(w)) for w in others]
        inputs = (self.form(x, order), *weights)
        self._make(op, order, inputs=inputs, channels_first=self.channels_first)

    def _map(self, op: NamedOp, changes: Callable[[Order], Mapping[str, Any]]) -> None:
        """An op that takes its operands, all of the result's rank, in any order of dims."""
        varying = [v for v in op.inputs if v not in self.graph.constants]
        largest = max(varying or op.inputs, key=_size)
        order = self._order(largest)
        inputs = tuple(self.form(value, order) for value in op.inputs)
        self._make(op, order, inputs=inputs, **changes(order))

    def _elementwise(self, op: NamedOp) -> None:
        self._map(op, lambda order: {})

    def _reduce(self, op: Reduce) -> None:
        self._map(op, lambda order: {"axes": tuple(sorted(order.index(axis) for axis in op.axes))})

    def _along_axis(self, op: Softmax | Concat) -> None:
        self._map(op, lambda order: {"axis": order.index(op.axis)})

    def _slice(self, op: Slice) -> None:
        self._map(op, lambda order: {"starts": _in(order, op.starts), "strides": _in(order, op.strides)})

    def _pad(self, op: Pad) -> None:
        self._map(op, lambda order: {"low": _in(order, op.low), "high": _in(order, op.high)})

    def _gather(self, op: Gather) -> None:
        x, indices = op.inputs
        order = self._order(x) if indices.type.rank == 1 else _identity(x)
        inputs = (self.form(x, order), self.form(indices, _identity(indices)))
        made = order if indices.type.rank == 1 else _identity(op.output)
        self._make(op, made, inputs=inputs, axis=order.index(op.axis))


def _identity(value: Value) -> Order:
    return tuple(range(value.type.rank))


def _in(order: Order, values: Sequence[_T]) -> tuple[_T, ...]:
    return tuple(values[d] for d in order)


def _size(value: Value) -> int:
    size = 1
    for extent in static(value.type.shape):
        size *= extent
    return size


def _permuted(encoding: Any, order: Sequence[int]) -> Any:
    return encoding if encoding.axis is None else replace(encoding, axis=list(order).index(encoding.axis))


_RULES: Mapping[type[NamedOp], Callable[[_Layout, Any], None]] = {
    Conv: _Layout._image,
    Pool: _Layout._image,
    Resize: _Layout._image,
    Elementwise: _Layout._elementwise,
    Recode: _Layout._elementwise,
    Broadcast: _Layout._elementwise,
    Reduce: _Layout._reduce,
    Softmax: _Layout._along_axis,
    Concat: _Layout._along_axis,
    Slice: _Layout._slice,
    Pad: _Layout._pad,
    Gather: _Layout._gather,
}
