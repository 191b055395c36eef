"""Rewrites a NamedGraph: ops by their results, with their readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mansard.ir.ops import Op
from mansard.ir.types import Value
from mansard.regions.named.builder import NamedBuilder
from mansard.regions.named.graph import Encoding, NamedGraph
from mansard.regions.named.ops import NamedOp


class Editor(NamedBuilder):
    """A graph under change. New ops may be put anywhere: `graph` sorts them and leaves out what nothing
    reads."""

    def __init__(self, graph: NamedGraph) -> None:
        names = {v.name for op in graph.ops for v in (*op.inputs, op.output)}
        names |= {v.name for v in (*graph.inputs, *graph.outputs, *graph.constants)}
        super().__init__(names, graph.constants)
        self._before = graph
        self._readers_of: dict[Value, dict[Value, None]] = {}
        self.encodings: dict[Value, Encoding] = dict(graph.encodings)
        self.outputs = list(graph.outputs)
        for op in graph.ops:
            self.put(op)

    # Asking ---------------------------------------------------------------------------------
    def producer(self, value: Value) -> NamedOp | None:
        """The op that computes a value; None for an input or a constant."""
        return self._ops.get(value)

    def readers(self, value: Value) -> list[NamedOp]:
        """The ops that read a value."""
        return [self._ops[output] for output in self._readers_of.get(value, ())]

    def only_reader(self, value: Value) -> NamedOp | None:
        """The op that alone reads a value, which is no output of the graph."""
        readers = self._readers_of.get(value, {})
        if len(readers) != 1 or value in self.outputs:
            return None
        return self._ops[next(iter(readers))]

    def listed(self) -> list[NamedOp]:
        """The ops as they are now, each behind what it reads."""
        return _sorted(self._ops, [*self.outputs, *self._ops])

    # Changing -------------------------------------------------------------------------------
    def put(self, op: NamedOp) -> None:
        """An op, in place of the one that computed its result."""
        old = self._ops.get(op.output)
        for value in old.inputs if old is not None else ():
            self._readers_of[value].pop(op.output, None)
        self._ops[op.output] = op
        for value in op.inputs:
            self._readers_of.setdefault(value, {})[op.output] = None

    def drop(self, value: Value) -> None:
        """Take away the op that computes a value."""
        for source in self._ops.pop(value).inputs:
            self._readers_of[source].pop(value, None)

    def sweep(self) -> None:
        """Take away the ops that no output of the graph depends on."""
        live = {op.output for op in _sorted(self._ops, self.outputs)}
        for value in [value for value in self._ops if value not in live]:
            self.drop(value)

    def rename(self, old: Value, new: Value) -> None:
        """Let what reads ``old`` read ``new``; an output of the graph keeps its value."""
        for output in list(self._readers_of.get(old, ())):
            op = self._ops[output]
            self.put(replace(op, inputs=tuple(new if v is old else v for v in op.inputs)))

    def duplicate(self, value: Value) -> Value:
        """A constant once more, under a value of its own."""
        copy = self.value(value.name, [int(str(e)) for e in value.type.shape], value.type.dtype)
        self.constants[copy] = self.constants[value]
        return copy

    def graph(self) -> NamedGraph:
        """The graph as it is now."""
        ops = _sorted(self._ops, self.outputs)
        read = {value for op in ops for value in op.inputs} | set(self.outputs)
        known = read | {op.output for op in ops} | set(self._before.inputs)
        return NamedGraph(
            self._before.name,
            self._before.inputs,
            tuple(self.outputs),
            tuple(ops),
            {value: constant for value, constant in self.constants.items() if value in read},
            {value: encoding for value, encoding in self.encodings.items() if value in known},
        )


def _sorted(ops: Mapping[Value, NamedOp], roots: Iterable[Value]) -> list[NamedOp]:
    """The ops that compute some values, each behind those it reads."""
    order: dict[Value, NamedOp] = {}
    stack = [(value, False) for value in reversed(list(roots))]
    while stack:
        value, entered = stack.pop()
        op = ops.get(value)
        if op is None or value in order:
            continue
        if entered:
            order[value] = op
            continue
        stack.append((value, True))
        stack.extend((source, False) for source in reversed(op.inputs))
    return list(order.values())


def sources(ops: Iterable[NamedOp]) -> frozenset[Op]:
    """The ops of the Graph that some named ops are from."""
    return frozenset(op for named in ops for op in named.sources)
