"""Means: a sum divided by the number of its elements, and factors behind a mean that cancel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mansard.dtypes import DType
from mansard.regions.named.builder import static
from mansard.regions.named.editor import Editor, sources
from mansard.regions.named.ops import Elementwise, NamedOp, Pool, Reduce, Reshape, Transpose

EXACT = 1e-6
"""How far a factor in f32 may be from the one meant."""


def fold_means(e: Editor) -> None:
    """Let reductions and pools give the mean where a factor makes one of their result."""
    for op in e.listed():
        if isinstance(op, Reduce) and op.kind == "add" and op.output.type.dtype is DType.F32:
            shape = static(op.inputs[0].type.shape)
            _fold(e, replace(op, kind="mean"), float(np.prod([shape[axis] for axis in op.axes])))
        elif isinstance(op, Pool) and op.kind == "average":
            _fold(e, op, 1.0)


def _fold(e: Editor, op: NamedOp, factor: float) -> None:
    """The op with factors behind it, which are 1 together with ``factor``; views may stand between."""
    passed, value = list[NamedOp](), op.output
    while (reader := e.only_reader(value)) is not None:
        if isinstance(reader, (Reshape, Transpose)):
            passed.append(reader)
        elif isinstance(reader, Elementwise) and (number := _factor(e, reader, value)) is not None:
            factor *= number
            passed.append(reader)
        else:
            break
        value = reader.output
        if abs(factor - 1) <= EXACT and isinstance(reader, Elementwise):
            _put(e, op, passed)
            return


def _factor(e: Editor, op: Elementwise, value: object) -> float | None:
    if op.op not in ("mul", "div") or len(op.inputs) != 2:
        return None
    x, other = op.inputs if op.inputs[0] is value or op.op == "div" else op.inputs[::-1]
    number = e.scalar(other) if x is value and x.type.shape == op.output.type.shape else None
    return None if not number else float(number) if op.op == "mul" else 1 / float(number)


def _put(e: Editor, op: NamedOp, passed: list[NamedOp]) -> None:
    """The mean, and the views behind it that stay."""
    merged = sources((op, *passed))
    views = [each for each in passed if not isinstance(each, Elementwise)]
    last = passed[-1].output
    for each in reversed(passed):
        e.drop(each.output)
    e.drop(op.output)
    value = last if not views else e.value(op.output.name, static(op.output.type.shape), DType.F32)
    e.put(replace(op, output=value, sources=merged))
    for view in views:
        target = last if view is views[-1] else view.output
        e.put(replace(view, inputs=(value,), output=target, sources=merged))
        value = target
