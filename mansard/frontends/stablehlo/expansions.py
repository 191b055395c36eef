"""Functions that exporters have expanded into arithmetic, as functions again.

`jax.export` writes no CHLO: an ``erfc``, of which an exact GELU is made, arrives as MLIR's definition of it
in sixty ops. Where a graph has that definition, op by op with the same numbers, it becomes the formula that
the function itself is imported as.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Scalar
from mansard.ir.types import IndexMap, Value


def contracted(graph: Graph, definition: Graph, function: Graph) -> Graph:
    """The graph with ``function``, one op, wherever it has the ops of ``definition``; both take an element.

    The same graph if it has them nowhere. What is then unread stays.
    """
    (root,), (formula,) = definition.outputs, (op for op in function.ops if isinstance(op, Generic))
    producers, wanted = graph.producers(), definition.producers()
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, Generic):
            found = _Match(producers, wanted)
            if found.value(op.output, root):
                (operand,) = (found.bound[v] for v in definition.inputs)
                op = replace(
                    op, inputs=(operand,), maps=(IndexMap.identity(op.output.type.rank),), body=formula.body
                )
        ops.append(op)
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


class _Match:
    """Ops of a graph beside those of a definition, element by element."""

    def __init__(self, producers: Mapping[Value, Op], wanted: Mapping[Value, Op]) -> None:
        self.producers, self.wanted = producers, wanted
        self.bound: dict[Value, Value] = {}
        """What inputs of the definition stand for."""
        self.known: set[tuple[Value, Value]] = set()

    def value(self, value: Value, like: Value) -> bool:
        """Whether a value is computed as another one of the definition."""
        if (value, like) in self.known:
            return True
        pattern = self.wanted.get(like)
        if pattern is None:
            same = self.bound.setdefault(like, value) == value and value.type.dtype is like.type.dtype
        else:
            op = self.producers.get(value)
            same = (
                isinstance(op, Generic) and isinstance(pattern, Generic)
                and _elementwise(op) and self._body(op, pattern, (op.body, pattern.body))
            )  # fmt: skip
        if same:
            self.known.add((value, like))
        return same

    def _body(self, op: Generic, pattern: Generic, bodies: tuple[Scalar, Scalar]) -> bool:
        body, like = bodies
        if isinstance(body, Arg) and isinstance(like, Arg):
            return self.value(op.inputs[body.index], pattern.inputs[like.index])
        if isinstance(body, Apply) and isinstance(like, Apply):
            if (body.op, body.dtype, len(body.args)) != (like.op, like.dtype, len(like.args)):
                return False
            return all(self._body(op, pattern, pair) for pair in zip(body.args, like.args, strict=True))
        return body == like


def _elementwise(op: Generic) -> bool:
    """Whether an op computes every element from those at its place."""
    here = IndexMap.identity(op.output.type.rank)
    return op.combiner is None and all(m == here for m in op.maps)
