"""Common subexpression elimination.

Before::

    %a: 4xf32 = generic (d0:4) {exp(%x[d0])}
    %b: 4xf32 = generic (d0:4) {exp(%x[d0])}
    %c: 4xf32 = generic (d0:4) {%a[d0] + %b[d0]}

After::

    %a: 4xf32 = generic (d0:4) {exp(%x[d0])}
    %c: 4xf32 = generic (d0:4) {%a[d0] + %a[d0]}

Ops are equal when their kind, attributes, bodies, maps, result types and operands are; constants when they
are the same object, or small with the same bytes.
"""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakKeyDictionary

from mansard.analysis.operands import renamed
from mansard.analysis.structure import attributes
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Op
from mansard.ir.types import Constant, Value

SMALL_BYTES = 1024
"""Constants up to this many bytes are compared by content; larger ones are not read."""

_contents: WeakKeyDictionary[Constant, bytes] = WeakKeyDictionary()


def eliminate_common(graph: Graph) -> Graph:
    """Merge equal ops and constants; the same graph when there are none."""
    names = _equal_constants(graph)
    seen: dict[Hashable, Op] = {}
    ops = []
    for op in graph.ops:
        op = renamed(op, names)
        first = seen.setdefault((attributes(op), op.inputs), op)
        if first is op:
            ops.append(op)
        else:
            names.update(zip(op.outputs, first.outputs, strict=True))
    if not names:
        return graph
    constants = {v: c for v, c in graph.constants.items() if v not in names}
    return graph.with_ops(ops, names, constants=constants)


def _equal_constants(graph: Graph) -> dict[Value, Value]:
    seen: dict[Hashable, Value] = {}
    names: dict[Value, Value] = {}
    for value, constant in graph.constants.items():
        first = seen.setdefault((value.type, _content(value, constant)), value)
        if first is not value:
            names[value] = first
    return names


def _content(value: Value, constant: Constant) -> Hashable:
    size = value.type.bytes
    if not isinstance(size, int) or size > SMALL_BYTES:
        return id(constant)
    if constant not in _contents:
        _contents[constant] = load(value, constant).tobytes()
    return _contents[constant]
