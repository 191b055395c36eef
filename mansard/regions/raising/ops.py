"""The raising of a whole graph, with a reason for each op that stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mansard.ir.graph import Graph
from mansard.ir.ops import Assert, Concat, Generic, Op, Pad, Reshape, Slice
from mansard.ir.types import Value
from mansard.regions.named.builder import NamedBuilder, static
from mansard.regions.named.graph import NamedGraph
from mansard.regions.named.ops import NamedOp
from mansard.regions.named.ops import Reshape as Copy
from mansard.regions.raising.generics import raise_generic
from mansard.regions.raising.refusal import NotRaised


@dataclass(frozen=True)
class Raised:
    """Named ops of a graph, and why other ops have no named form.

    Where ops are left out the named graph is no program: it lacks what they compute.
    """

    graph: NamedGraph
    reasons: Mapping[Op, str]


def raise_ops(graph: Graph) -> Raised:
    """Every op of a canonical graph as named ops, or with a reason: as they stand, ops beside each other are
    not looked at."""
    names = {value.name for value in graph.values()}
    builder = NamedBuilder(names, graph.constants)
    reasons: dict[Op, str] = {}
    values: dict[Value, Value] = {}
    for op in graph.ops:
        mark = builder.mark()
        builder.sources = frozenset({op})
        try:
            result = _raise_op(builder, op, values)
            values[op.output] = builder.called(result, op.output, mark)
        except NotRaised as refusal:
            builder.undo(mark)
            reasons[op] = str(refusal)
    return Raised(_program(graph, builder, values, reasons), reasons)


def _program(
    graph: Graph, b: NamedBuilder, values: Mapping[Value, Value], reasons: Mapping[Op, str]
) -> NamedGraph:
    """The named ops as a program: what other ops compute is among its inputs, what they read among its
    outputs."""
    given = [v for op in graph.ops if op in reasons for v in op.outputs]
    inputs = (*graph.inputs, *(state.before for state in graph.states), *given)
    read = [v for op in graph.ops if op in reasons for v in op.inputs]
    wanted = dict.fromkeys((*graph.outputs, *(state.after for state in graph.states), *read))
    computed, producers = {op.output for op in b.ops()}, graph.producers()
    names: dict[Value, Value] = {}
    copies: list[NamedOp] = []
    for value in wanted:
        result = values.get(value, value)
        if result is value:
            continue
        if result in computed and result not in (*names, *wanted):
            names[result] = value
        elif value in values:
            copies.append(Copy((result,), value, sources=frozenset({producers[value]})))
    ops = [_renamed(op, names) if names else op for op in (*b.ops(), *copies)]
    outputs = tuple(value for value in wanted if value not in graph.constants and value not in inputs)
    return NamedGraph(graph.name, inputs, outputs, tuple(ops), b.constants)


def _renamed(op: NamedOp, names: Mapping[Value, Value]) -> NamedOp:
    return replace(
        op, inputs=tuple(names.get(v, v) for v in op.inputs), output=names.get(op.output, op.output)
    )


def _raise_op(b: NamedBuilder, op: Op, values: Mapping[Value, Value]) -> Value:
    if isinstance(op, Assert):
        raise NotRaised("the host checks it")
    for value in (*op.inputs, *op.outputs):
        symbolic = [extent for extent in value.type.shape if not isinstance(extent, int)]
        if symbolic:
            raise NotRaised(f"it has a dim {symbolic[0]}, whose size is not fixed")
        if 0 in value.type.shape:
            raise NotRaised("it has no elements")
    inputs = [values.get(value, value) for value in op.inputs]
    match op:
        case Generic():
            if not all(isinstance(extent, int) for extent in op.extents):
                raise NotRaised("its loops have no fixed size")
            return raise_generic(b, op, inputs)
        case Reshape():
            return b.reshape(inputs[0], static(op.output.type.shape))
        case Concat():
            return b.concat(inputs, op.axis)
        case Slice() if all(isinstance(offset, int) for offset in op.offsets):
            return b.slice(inputs[0], static(op.offsets), static(op.output.type.shape), op.strides)
        case Pad() if all(isinstance(by, int) for by in (*op.low, *op.high)):
            return b.pad(inputs[0], static(op.low), static(op.high), op.value)
        case _:
            raise NotRaised(f"{op.name} has no named form")
