"""Give outputs, states and what is asserted separate buffers, before ops are grouped.

A result that is also a part of a concatenation (the last state of a recurrent network) has its buffer there.

Before: ``return %x, %y, %y``   After: ``%x1 = copy %x; %y1 = copy %y; return %x1, %y, %y1``
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mansard.analysis.concatenation import outermost_parts
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Assert, Generic, Op
from mansard.ir.producers import base_of
from mansard.ir.scalar import Arg
from mansard.ir.types import IndexMap, Value


def materialise_outputs(graph: Graph) -> Graph:
    """Give every output a separate buffer: copy those that are inputs, constants, shared or parts of another
    result. Of what is asserted copy constants and states."""
    producers = graph.producers()
    parts = {base_of(value, producers) for op in graph.ops for value, _ in outermost_parts(op)}
    taken = {v.name for v in graph.values()}
    ops, outputs, used = list(graph.ops), [], set()

    def copy(value: Value) -> Value:
        out = Value(fresh_name(taken, value.name), value.type)
        identity = IndexMap.identity(value.type.rank)
        ops.append(Generic((value,), (out,), value.type.shape, (identity,), Arg(0, value.type.dtype)))
        return out

    for op in graph.ops:
        if isinstance(op, Assert) and not _is_readable(graph, base_of(op.inputs[0], producers), producers):
            ops.remove(op)
            ops.append(replace(op, inputs=(copy(op.inputs[0]),)))
    for value in graph.outputs:
        base = base_of(value, producers)
        if base not in producers or base in used or base in parts:
            value = copy(value)
            base = value
        used.add(base)
        outputs.append(value)
    states = []
    for state in graph.states:
        after = state.after
        base = base_of(after, producers)
        if after is not state.before and (base not in producers or base in used):
            after = copy(after)
            base = after
        used.add(base)
        states.append(type(state)(state.before, after, state.initial))
    return Graph(
        graph.name,
        graph.inputs,
        tuple(outputs),
        tuple(ops),
        graph.constants,
        tuple(states),
        graph.output_names,
        graph.parameters,
        graph.constraints,
    )


def _is_readable(graph: Graph, base: Value, producers: Mapping[Value, Op]) -> bool:
    """Whether the host reads an asserted value where it is: states change, and constants may be packed."""
    return base in producers or base in graph.inputs
