"""The listing of a NamedGraph: one op a line."""

from __future__ import annotations

from dataclasses import fields

from mansard.ir.types import Value
from mansard.regions.named.graph import NamedGraph
from mansard.regions.named.ops import NamedOp

_BASE = {f.name for f in fields(NamedOp)} | {"op"}


def named_text(graph: NamedGraph) -> str:
    """One line for each input and op: the result with its type and encoding, the op, its attributes."""
    lines = [f"named {graph.name}"]
    lines += [f"  input {_typed(graph, value)}" for value in graph.inputs]
    for op in graph.ops:
        operands = ", ".join(str(value) for value in op.inputs)
        attributes = {f.name: getattr(op, f.name) for f in fields(op) if f.name not in _BASE}
        if op.clamp is not None:
            attributes["clamp"] = op.clamp
        shown = "".join(f" {name}={value}" for name, value in attributes.items())
        lines.append(f"  {_typed(graph, op.output)} = {op.name} {operands}{shown}")
    lines.append("  return " + ", ".join(str(value) for value in graph.outputs))
    return "\n".join(lines) + "\n"


def _typed(graph: NamedGraph, value: Value) -> str:
    encoding = graph.encodings.get(value)
    if encoding is None:
        return f"{value}: {value.type}"
    scale = f"{encoding.scales[0]:g}" if encoding.axis is None else f"per index of dim {encoding.axis}"
    return f"{value}: {value.type} (scale {scale}, zero {encoding.zero})"
