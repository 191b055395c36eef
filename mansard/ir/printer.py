"""Readable text of a Graph: one line for each op. `mansard.ir.parser` reads it back.

    graph main
      dim    s: 1 to 64 step 2
      input  %x: [s]x8xf32
      const  %w: 8x5xf32 "layer.weight"
      %y: [s]x5xf32 = generic (d0:s, d1:5 | d2:8) add {%x[d0, d2] * %w[d2, d1]}
      return %y

Dims after the bar are reduced by the combiner in front of the body (`mansard.ir.text.body_printer`).
Constants stand for themselves by key; their data is no part of the text.
"""

from __future__ import annotations

from collections.abc import Iterator

from mansard.dims import Dim
from mansard.ir.dispatch import DispatchGraph
from mansard.ir.graph import Graph
from mansard.ir.op_text import print_op
from mansard.ir.text.literals import name_text, quoted, typed, value_text


def print_graph(graph: Graph, locations: bool = False) -> str:
    """``graph`` as text; ``locations`` adds where each op comes from."""
    return "\n".join(_lines(graph, locations)) + "\n"


def _lines(graph: Graph, locations: bool) -> Iterator[str]:
    yield f"graph {name_text(graph.name)}"
    parameters = {dim.name for dim in graph.parameters}
    for name, dim in sorted(graph.dims().items()):
        if name not in parameters:
            yield f"  dim    {_contract(dim)}"
    for dim in graph.parameters:
        yield f"  param  {_contract(dim)}"
    for constraint in graph.constraints:
        yield f"  require {constraint}"
    for value in graph.inputs:
        yield f"  input  {typed(value)}"
    for state in graph.states:
        initial = f" initial {quoted(state.initial.key)}" if state.initial is not None else ""
        yield f"  state  {typed(state.before)} -> {value_text(state.after)}{initial}"
    for value, constant in graph.constants.items():
        yield f"  const  {typed(value)} {quoted(constant.key)}"
    for op in graph.ops:
        yield "  " + print_op(op, locations)
    names = graph.output_names or tuple(v.name for v in graph.outputs)
    results = (
        value_text(v) if v.name == name else f"{value_text(v)} as {name_text(name)}"
        for v, name in zip(graph.outputs, names, strict=True)
    )
    yield f"  return {', '.join(results)}".rstrip()


def _contract(dim: Dim) -> str:
    step = f" step {dim.multiple}" if dim.multiple != 1 else ""
    typical = f" typical {dim.typical}" if dim.typical is not None else ""
    return f"{dim.name}: {dim.min} to {dim.max}{step}{typical}"


def print_dispatches(graph: DispatchGraph) -> str:
    """``graph`` as text: each dispatch with its buffers, then its ops; last, what is part of what."""
    lines = []
    for dispatch in graph.dispatches:
        inputs = ", ".join(map(typed, dispatch.inputs))
        outputs = ", ".join(map(typed, dispatch.outputs))
        domain = ", ".join(map(str, dispatch.domain))
        lines.append(f"dispatch {dispatch.name}[{domain}] ({inputs}) -> ({outputs})")
        lines.extend(f"  {print_op(op)}" for op in dispatch.ops)
    for value, (whole, offset) in graph.slices.items():
        lines.append(f"slice {typed(value)} = {whole} at {offset}")
    for value, parts in graph.joins.items():
        lines.append(f"join {typed(value)} = {', '.join(f'{part} at {offset}' for part, offset in parts)}")
    return "\n".join(lines)
