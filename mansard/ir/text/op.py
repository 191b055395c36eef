"""Ops as lines of text, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mansard.dims import DimLike
from mansard.ir.combiners import ARITHMETIC_COMBINERS, COMBINERS
from mansard.ir.ops import (
    Assert,
    Attention,
    Concat,
    Generic,
    Op,
    Pad,
    Reshape,
    Scan,
    Scatter,
    Slice,
    Sort,
)
from mansard.ir.text.attributes import (
    DIMS,
    INTEGER,
    INTEGERS,
    NUMBER,
    Attribute,
    Choice,
    Flag,
    Keyword,
    Text,
)
from mansard.ir.text.body import body_text, read_body
from mansard.ir.text.literals import value_text
from mansard.ir.text.scanner import Scanner
from mansard.ir.types import Location, Value

_ATTRIBUTES: dict[type[Op], tuple[Attribute, ...]] = {
    Reshape: (),
    Slice: (Keyword("offsets", DIMS), Keyword("strides", INTEGERS)),
    Concat: (Keyword("axis", INTEGER),),
    Pad: (Keyword("low", DIMS), Keyword("high", DIMS), Keyword("value", NUMBER)),
    Scatter: (Choice("combiner", ARITHMETIC_COMBINERS, optional=True),),
    Sort: (Keyword("axis", INTEGER), Flag("descending"), Keyword("limit", INTEGER, optional=True)),
    Scan: (
        Keyword("axis", INTEGER),
        Choice("combiner", ARITHMETIC_COMBINERS),
        Flag("exclusive", "inclusive", False),
    ),
    Attention: (Keyword("scale", NUMBER), Flag("causal")),
    Assert: (Text("message"),),
}
_BY_NAME = {cls.__name__.lower(): cls for cls in _ATTRIBUTES}


# Printing -----------------------------------------------------------------------------------
def op_text(op: Op) -> str:
    """The op without its results."""
    if isinstance(op, Generic):
        combiner = f"{op.combiner} " if op.combiner else ""
        return f"generic ({_extents(op.extents, op.output.type.rank)}) {combiner}{body_text(op)}"
    parts = [op.name, ", ".join(map(value_text, op.inputs))]
    parts += [attribute.text(op) for attribute in _ATTRIBUTES.get(type(op), ())]
    return " ".join(part for part in parts if part)


def _extents(extents: Sequence[DimLike], rank: int) -> str:
    named = [f"d{i}:{e}" for i, e in enumerate(extents)]
    parallel, reduced = ", ".join(named[:rank]), ", ".join(named[rank:])
    return f"{parallel} | {reduced}".lstrip() if reduced else parallel


# Parsing ------------------------------------------------------------------------------------
def read_op(scanner: Scanner) -> Op:
    """An op with its results, which become known to the scanner's scope."""
    start = scanner.position
    # The results come first in the text, and into scope last: an op does not read its own results.
    outputs: list[Value] = []
    scope = dict(scanner.scope.values)
    while scanner.text.startswith("%", scanner.position):
        outputs.append(scanner.definition())
        if not scanner.accept(","):
            scanner.expect("=")
            break
    defined, scanner.scope.values = scanner.scope.values, scope
    op = _right_side(scanner, tuple(outputs), start)
    scanner.scope.values = defined
    return op


def _right_side(scanner: Scanner, outputs: tuple[Value, ...], line: int) -> Op:
    start = scanner.position
    name = scanner.word("an op")
    if name == "generic":
        return _generic(scanner, outputs, line)
    cls = _BY_NAME.get(name)
    if cls is None:
        scanner.fail(f"an op ({', '.join(['generic', *_BY_NAME])})", start)
    inputs: list[Value] = []
    while scanner.text.startswith("%", scanner.position):
        inputs.append(scanner.value())
        if not scanner.accept(","):
            break
    fields: dict[str, Any] = {}
    for attribute in _ATTRIBUTES[cls]:
        fields |= attribute.read(scanner)
    return cls(tuple(inputs), outputs, location=read_location(scanner), **fields)


def _generic(scanner: Scanner, outputs: tuple[Value, ...], line: int) -> Generic:
    if len(outputs) != 1:
        scanner.fail("a generic with one result", line)
    extents: list[DimLike] = []
    parallel: int | None = None
    scanner.expect("(")
    start = scanner.position
    while not scanner.accept(")"):
        if scanner.accept("|"):
            parallel = len(extents)
        elif extents:
            scanner.expect(",")
        scanner.expect(f"d{len(extents)}")
        scanner.expect(":")
        extents.append(scanner.dim())
    if outputs[0].type.rank != (len(extents) if parallel is None else parallel):
        scanner.fail(f"{outputs[0].type.rank} loops before the bar, as many as the result has dims", start)
    combiner = scanner.one_of(COMBINERS)
    body = read_body(scanner)
    location = read_location(scanner)
    return Generic(body.inputs, outputs, tuple(extents), body.maps, body.root, combiner, location=location)


def read_location(scanner: Scanner) -> Location:
    """What stands after ``//`` at the end of a line."""
    if scanner.accept("//"):
        quoted = scanner.text.startswith('"', scanner.position)
        return Location(scanner.string() if quoted else scanner.rest())
    scanner.end()
    return Location()
