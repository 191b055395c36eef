"""Quantised values that are rounded from a sum of other quantised values.

::

    u8(max(min(round(f32(a) * 0.7 + f32(b) * 0.4 - 61.5) + 12.0, 255.0), 0.0))

is ``a + b`` in real numbers, where ``scale(a) = 0.7 * scale(y)``, ``scale(b) = 0.4 * scale(y)`` and the shift
stands for their zero points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.ir.types import Value
from mansard.regions.named.builder import static
from mansard.regions.named.editor import Editor, sources
from mansard.regions.named.ops import Elementwise, NamedOp, Recode
from mansard.regions.quantised.groups import Group, Ratio, close
from mansard.regions.quantised.roundings import NARROW, Rounding


@dataclass(frozen=True, eq=False)
class Linear:
    """A rounding of ``sum(factor * value) + shift``."""

    rounding: Rounding
    terms: Mapping[Value, float]
    shift: float
    ops: tuple[NamedOp, ...]

    def ratios(self, groups: Mapping[Value, Group]) -> list[Ratio]:
        """What it says of the scales of its values."""
        result = groups[self.rounding.value]
        factors = {v: abs(factor) / self.rounding.scale for v, factor in self.terms.items()}
        return [Ratio((groups[v],), factor, result) for v, factor in factors.items()]


def find_linear(e: Editor, roundings: Sequence[Rounding]) -> list[Linear]:
    """The roundings of sums of quantised values."""
    linear = []
    for rounding in roundings:
        ops: list[NamedOp] = []
        form = _form(e, rounding.x, ops)
        if form is not None and form[0] and all(form[0].values()):
            linear.append(Linear(rounding, *form, tuple(ops)))
    return linear


def learn_zeros(linear: Sequence[Linear], groups: Mapping[Value, Group]) -> None:
    """A zero point that nothing else says: where it is the only one, the shift says which it is."""
    for each in linear:
        unknown = [v for v in each.terms if groups[v].zero is None]
        if len(unknown) == 1:
            known = sum(f * (groups[v].zero or 0) for v, f in each.terms.items() if v is not unknown[0])
            zero = -(each.shift + known) / each.terms[unknown[0]]
            if abs(zero - round(zero)) < 1e-2:
                groups[unknown[0]].zero = round(zero)


def write_linear(e: Editor, each: Linear) -> None:
    """The sum in real numbers."""
    r = each.rounding
    encoding, e.sources = e.encodings[r.value], sources((*r.ops, *each.ops))
    unit = encoding.scale / r.scale
    shift = (each.shift + sum(f * e.encodings[v].zero for v, f in each.terms.items())) * unit
    shift += (r.zero - encoding.zero) * encoding.scale
    total: Value | None = None
    # A term that is subtracted needs one before it.
    for value, factor in sorted(each.terms.items(), key=lambda term: term[1] < 0):
        term = e.append(Recode, (value,), static(value.type.shape), DType.F32)
        real = factor * unit / e.encodings[value].scale
        if not close(abs(real), 1) or (total is None and real < 0):
            term = e.elementwise("mul", term, e.literal(real, DType.F32, term.type.rank))
            real = 1.0
        total = term if total is None else e.elementwise("add" if real > 0 else "sub", total, term)
    assert total is not None
    if abs(shift) > 1e-3 * encoding.scale:
        total = e.elementwise("add", total, e.literal(shift, DType.F32, total.type.rank))
    clamp = ((r.low - encoding.zero) * encoding.scale, (r.high - encoding.zero) * encoding.scale)
    e.put(Recode((total,), r.value, sources=e.sources, clamp=clamp))


def _form(e: Editor, value: Value, ops: list[NamedOp]) -> tuple[dict[Value, float], float] | None:
    """A value as a linear form of quantised values, with the ops that compute it."""
    number = e.scalar(value)
    if number is not None:
        return {}, float(number)
    op = e.producer(value)
    if not isinstance(op, Elementwise) or op.output.type.dtype is not DType.F32:
        return None
    if ops and op.op != "cast" and e.only_reader(value) is None:
        return None
    ops.append(op)
    if op.op == "cast":
        source = op.inputs[0]
        quantised = source.type.dtype in NARROW and source not in e.constants
        return ({source: 1.0}, 0.0) if quantised else None
    if op.op not in ("add", "sub", "mul", "div") or len(op.inputs) != 2:
        return None
    left, right = (_form(e, operand, ops) for operand in op.inputs)
    if left is None or right is None:
        return None
    if op.op in ("add", "sub"):
        sign = 1.0 if op.op == "add" else -1.0
        terms = dict(left[0])
        for v, factor in right[0].items():
            terms[v] = terms.get(v, 0.0) + sign * factor
        return terms, left[1] + sign * right[1]
    if op.op == "mul" and not left[0]:
        left, right = right, left
    if right[0] or (op.op == "div" and right[1] == 0):
        return None
    by = right[1] if op.op == "mul" else 1 / right[1]
    return {v: factor * by for v, factor in left[0].items()}, left[1] * by
