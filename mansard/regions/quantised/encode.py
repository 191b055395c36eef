"""The rewriting: encodings for integers, real numbers for the arithmetic of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mansard.dtypes import DType
from mansard.ir.types import Value
from mansard.regions.named.builder import static
from mansard.regions.named.editor import Editor, sources
from mansard.regions.named.ops import Elementwise, Pad, Recode, Reduce, Reshape, Transpose
from mansard.regions.quantised.corrections import corrected, implied_zero
from mansard.regions.quantised.groups import Groups, Ratio, close, keeps_encoding, moved_operands
from mansard.regions.quantised.linear import find_linear, learn_zeros, write_linear
from mansard.regions.quantised.products import Result, write_product, write_reduction
from mansard.regions.quantised.roundings import NARROW, Numbers, Rounding, find_numbers, find_roundings
from mansard.regions.quantised.sums import Sum, find_sums


def encode_values(e: Editor) -> None:
    """Give values of few bits encodings, and let ops of real numbers take the place of integer arithmetic.

    What has no such form stays as it is, on integers that are taken out of their encoding first.
    """
    e.sweep()
    _widen_last(e)
    roundings = find_roundings(e)
    for rounding in roundings:
        e.put(Recode((rounding.x,), rounding.value, sources=sources(rounding.ops)))
    e.sweep()
    numbers = find_numbers(e)
    plans = _plans(e, roundings)
    summed = {plan.rounding for plan in plans}
    linear = find_linear(e, [rounding for rounding in roundings if rounding not in summed])
    # Where a value is a term of a sum, its factor may be a ratio of scales.
    terms = {op.output for each in linear for op in each.ops}
    telling = [n for n in numbers if not all(op.output in terms for op in n.ops)]
    groups = Groups(e)
    unscaled = {plan.rounding.value for plan in plans if plan.rounding is not None and not plan.scaled}
    groups.learn(e, roundings, telling, [r.value for r in roundings if r.scaled and r.value not in unscaled])
    for number in numbers:
        if number.shifted and (group := groups.of.get(number.value)) and group.zero is None:
            group.zero = number.zero
    learn_zeros(linear, groups.of)
    for plan in plans:
        zero, group = implied_zero(e, plan.sum), groups.of.get(plan.sum.operands[0])
        if zero is not None and group is not None and group.zero is None:
            group.zero = zero
    kept = [plan for plan in plans if _zero_points_fit(e, plan, groups)]
    ratios = [ratio for plan in kept if (ratio := _ratio(e, plan, groups)) is not None]
    groups.solve([*ratios, *(ratio for each in linear for ratio in each.ratios(groups.of))])
    read = [value for plan in kept for value in plan.sum.operands if value in groups.of]
    for value in (*read, *(value for each in linear for value in each.terms)):
        groups.of[value].used = True
    for group in (group for group in groups.all() if group.used):
        e.encodings.update(dict.fromkeys(group.values, group.encoding()))
    _encode_moved(e)
    for plan in kept:
        _write(e, plan, groups)
    fused = {plan.rounding for plan in kept if plan.rounding is not None}
    for each in linear:
        write_linear(e, each)
    fused |= {each.rounding for each in linear}
    for rounding in roundings:
        if rounding not in fused:
            _write_rounding(e, rounding)
    for number in numbers:
        _write_numbers(e, number)
    _write_rest(e)


def _widen_last(e: Editor) -> None:
    """Let views be of integers of few bits, not of wider ones that are made of these."""
    for op in e.listed():
        widened = e.producer(op.inputs[0]) if isinstance(op, (Reshape, Transpose)) else None
        if not isinstance(widened, Elementwise) or widened.op != "cast":
            continue
        source, seen = widened.inputs[0], op.output
        if source.type.dtype in NARROW and seen.type.dtype is DType.I32:
            narrow = e.value(source.name, static(seen.type.shape), source.type.dtype)
            e.put(replace(op, inputs=(source,), output=narrow))
            e.put(replace(widened, inputs=(narrow,), output=seen, sources=sources((op, widened))))
    e.sweep()


@dataclass(frozen=True, eq=False)
class _Plan:
    """A sum, and the rounding that reads what is made of it and nothing else."""

    sum: Sum
    rounding: Rounding | None

    @property
    def scaled(self) -> bool:
        """Whether the graph scales the sums before they are rounded."""
        return not bool((self.sum.scale == 1).all())


def _plans(e: Editor, roundings: Sequence[Rounding]) -> list[_Plan]:
    by_value = {rounding.value: rounding for rounding in roundings}
    plans = []
    for each in find_sums(e):
        reader = e.only_reader(each.end)
        plans.append(_Plan(each, by_value.get(reader.output) if isinstance(reader, Recode) else None))
    return plans


def _zero_points_fit(e: Editor, plan: _Plan, groups: Groups) -> bool:
    """Whether the integers that are added to a sum are what zero points of its operands make of it."""
    return corrected(e, plan.sum, {v: group.zero or 0 for v, group in groups.of.items()})


def _ratio(e: Editor, plan: _Plan, groups: Groups) -> Ratio | None:
    """What a sum says of scales: nothing where weights take up any factor."""
    s = plan.sum
    if any(value in e.constants for value in s.operands):
        return None
    factor = float(s.scale.flat[0])
    result = None
    if plan.rounding is not None:
        factor, result = factor / plan.rounding.scale, groups.of[plan.rounding.value]
    if isinstance(s.core, Reduce):
        factor *= elements(s.core)
    return Ratio(tuple(groups.of[value] for value in s.operands), factor, result)


def elements(op: Reduce) -> int:
    """How many elements each sum has."""
    shape = static(op.inputs[0].type.shape)
    return int(np.prod([shape[axis] for axis in op.axes]))


def _encode_moved(e: Editor) -> None:
    """Let pads of integers say which number they pad with, and moved constants what they stand for."""
    for op in e.listed():
        encoding = e.encodings.get(op.output)
        if encoding is None or not keeps_encoding(op):
            continue
        if isinstance(op, Pad):
            op = replace(op, value=(int(op.value) - encoding.zero) * encoding.scale)
        inputs = list(op.inputs)
        for place, value in enumerate(moved_operands(op)):
            if value in e.constants:
                inputs[place] = e.duplicate(value)
                e.encodings[inputs[place]] = encoding
        e.put(replace(op, inputs=tuple(inputs)))


def _write(e: Editor, plan: _Plan, groups: Groups) -> None:
    s, rounding = plan.sum, plan.rounding
    result = Result(s.end, s.scale, s.offset, s.clamp, sources(s.ops))
    if rounding is not None:
        encoding = e.encodings[rounding.value]
        result = result.rounded(rounding, encoding)
    e.sources = result.sources
    if isinstance(s.core, Reduce):
        write_reduction(e, s, result, elements(s.core))
    else:
        write_product(e, s, result)


def _write_rounding(e: Editor, r: Rounding) -> None:
    """A rounding that no sum was written with: in the scale of its group."""
    encoding, e.sources = e.encodings[r.value], sources(r.ops)
    x = affine(e, r.x, encoding.scale / r.scale, (r.zero - encoding.zero) * encoding.scale)
    clamp = ((r.low - encoding.zero) * encoding.scale, (r.high - encoding.zero) * encoding.scale)
    e.put(Recode((x,), r.value, sources=e.sources, clamp=clamp))


def _write_numbers(e: Editor, n: Numbers) -> None:
    if n.value not in e.encodings or e.producer(n.result) is None:
        return
    encoding, e.sources = e.encodings[n.value], sources(n.ops)
    factor, shift = n.scale / encoding.scale, (encoding.zero - n.zero) * n.scale
    if close(factor, 1) and shift == 0:
        e.put(Recode((n.value,), n.result, sources=e.sources))
        return
    real = affine(e, e.append(Recode, (n.value,), static(n.value.type.shape), DType.F32), factor, shift)
    e.put(Reshape((real,), n.result, sources=e.sources))


def affine(e: Editor, x: Value, factor: float, shift: float) -> Value:
    """``x * factor + shift`` in f32, with ops for what does something."""
    if not close(factor, 1):
        x = e.elementwise("mul", x, e.literal(factor, DType.F32, x.type.rank))
    if shift != 0:
        x = e.elementwise("add", x, e.literal(shift, DType.F32, x.type.rank))
    return x


def _write_rest(e: Editor) -> None:
    """Let ops that still compute with integers of an encoding read these as plain ones."""
    e.sweep()
    for op in e.listed():
        integers = isinstance(op, Elementwise) or op.output.type.dtype is DType.I32
        if not integers or not any(value in e.encodings for value in (*op.inputs, op.output)):
            continue
        if op.output.type.dtype is DType.F32 and not any(v.type.dtype in NARROW for v in op.inputs):
            continue
        e.sources = op.sources
        plain = tuple(_plain(e, value) if value in e.encodings else value for value in op.inputs)
        encoding = e.encodings.get(op.output)
        if encoding is None:
            e.put(replace(op, inputs=plain))
            continue
        whole = e.value(op.output.name, static(op.output.type.shape), op.output.type.dtype)
        e.put(replace(op, inputs=plain, output=whole))
        real = affine(e, e.cast(whole, DType.F32), encoding.scale, -encoding.zero * encoding.scale)
        e.put(Recode((real,), op.output, sources=op.sources))


def _plain(e: Editor, value: Value) -> Value:
    encoding = e.encodings[value]
    real = e.append(Recode, (value,), static(value.type.shape), DType.F32)
    whole = e.elementwise("round", affine(e, real, 1 / encoding.scale, encoding.zero))
    return e.cast(whole, value.type.dtype)
