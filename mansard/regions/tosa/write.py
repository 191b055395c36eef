"""Named ops to an integer TOSA program.

Values without an encoding that are f32 stay numbers only on the way: from the integers that enter a program
to those that leave it. They are exact sums with their scales, tables of 8-bit integers, or 27-bit
integers of a power of two: the rounding of a result to its encoding is the one that counts, by TOSA's RESCALE
(halves up, a multiplier of 31 bits) where the named op's meaning rounds halves to even. A result is thus at
most one step from the named op's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.types import Value
from mansard.regions.named import (
    Broadcast,
    Concat,
    Conv,
    Elementwise,
    MatMul,
    NamedGraph,
    NamedOp,
    Pad,
    Pool,
    Recode,
    Reduce,
    Reshape,
    Resize,
    Slice,
    Transpose,
)
from mansard.regions.tosa import elementwise, movement, pooling, products
from mansard.regions.tosa.builder import Builder
from mansard.regions.tosa.program import NoTosaError, TosaProgram
from mansard.regions.tosa.values import Integer, Known, Scaled, State, Tabulated
from mansard.regions.tosa.writer import TYPES, Writer

Rule = Callable[[Writer, Any], State]
_RULES: Mapping[type[NamedOp], Rule] = {
    Conv: products.convolution,
    MatMul: products.product,
    Pool: pooling.pool,
    Reduce: pooling.reduction,
    Elementwise: elementwise.elementwise,
    Recode: elementwise.recode,
    Reshape: movement.reshape,
    Transpose: movement.transpose,
    Broadcast: movement.broadcast,
    Slice: movement.block,
    Pad: movement.padding,
    Concat: movement.join,
    Resize: movement.resize,
}


def write_tosa(graph: NamedGraph, rounding: str = "SINGLE_ROUND") -> TosaProgram:
    """The program of a graph all of whose inputs and outputs are integers.

    Its inputs and outputs are the graph's, in order; ``rounding`` is the rounding mode of RESCALE. Raises
    NoTosaError, which names the op, for what has no integer form.
    """
    reasons = refusals(graph, rounding)
    if reasons:
        op, reason = next(iter(reasons.items()))
        raise NoTosaError(op, reason)
    writer = Writer(graph, Builder(rounding))
    _enter(writer, ())
    for op in graph.ops:
        _write(writer, op)
    outputs = [_leave(writer, op, value) for value, op in _makers(graph).items()]
    return writer.builder.program(outputs)


def refusals(graph: NamedGraph, rounding: str = "SINGLE_ROUND") -> dict[NamedOp, str]:
    """Why ops of a graph have no integer form, those included without which others have none.

    A graph without these ops, whose results become inputs of it, can be written.
    """
    refused: dict[NamedOp, str] = {}
    while True:
        more = _refusals(graph, refused, rounding)
        if not more:
            return refused
        refused |= more


def _refusals(graph: NamedGraph, refused: Mapping[NamedOp, str], rounding: str) -> dict[NamedOp, str]:
    writer = Writer(graph, Builder(rounding))
    _enter(writer, [op.output for op in refused])
    more: dict[NamedOp, str] = {}
    for op in graph.ops:
        if op in refused:
            continue
        try:
            _write(writer, op)
        except NoTosaError as error:
            more[op] = error.reason
            _enter_value(writer, op.output)
    read = {value for op in (*refused, *more) for value in op.inputs} | set(graph.outputs)
    for op in graph.ops:
        state = writer.states.get(op.output)
        if op.output in read and op not in more and isinstance(state, (Scaled, Tabulated)):
            more[op] = "its result is f32, and what reads it is on another device"
    return more


def _enter(writer: Writer, others: Collection[Value]) -> None:
    """Give inputs and constants their states. ``others`` are values that enter, too."""
    graph = writer.graph
    for value, constant in graph.constants.items():
        array = np.asarray(constant.load())
        writer.states[value] = Known(array, value.type.dtype, graph.encodings.get(value))
    for value in (*graph.inputs, *others):
        _enter_value(writer, value)


def _enter_value(writer: Writer, value: Value) -> None:
    """Make a value of integers an input of the program."""
    dtype = value.type.dtype
    if dtype not in TYPES or value in writer.graph.constants:
        return
    shape, encoding = writer.shape(value), writer.graph.encodings.get(value)
    tensor, offset = writer.builder.input(TYPES[dtype], shape), 0
    if dtype is DType.U8:
        tensor, offset = writer.builder.rescale(tensor, 1.0, "INT8", in_zero=128, in_unsigned=True), 128
    writer.states[value] = Integer(tensor, TYPES[dtype], shape, encoding, offset)


def _write(writer: Writer, op: NamedOp) -> None:
    rule = _RULES.get(type(op))
    if rule is None:
        raise NoTosaError(op, f"TOSA has no {op.name}, and it is not composed of others here")
    mark = writer.builder.mark()
    writer.builder.label = _label(op)
    try:
        movement.moved_rank(op)
        writer.states[op.output] = writer.store(op, rule(writer, op))
    except (NoTosaError, ValueError) as error:
        writer.builder.undo(mark)
        writer.states.pop(op.output, None)
        if isinstance(error, NoTosaError):
            raise
        raise NoTosaError(op, str(error)) from error


def _label(op: NamedOp) -> str:
    """A named op by its kind and its place in the model: that of a product, where it has one."""
    places = sorted(source.location.text for source in op.sources if source.location.text)
    products = sorted(s.location.text for s in op.sources if is_contraction(s) and s.location.text)
    return f"{op.name} {(products or places)[0]}" if places else op.name


def _makers(graph: NamedGraph) -> dict[Value, NamedOp]:
    producers = graph.producers()
    return {value: producers[value] for value in graph.outputs}


def _leave(writer: Writer, op: NamedOp, value: Value) -> str:
    state = writer.states[value]
    if isinstance(state, Known):
        state = writer.stored(op, state)
    assert isinstance(state, Integer), "an output without a tensor was refused"
    if state.offset:
        return writer.builder.rescale(state.tensor, 1.0, "INT8", out_zero=128, out_unsigned=True)
    if not any(made.output == state.tensor for made in writer.builder.ops):
        return writer.builder.op("IDENTITY", (state.tensor,), state.dtype, state.shape)
    return state.tensor
