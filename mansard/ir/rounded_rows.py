"""Rows rounded to bytes by groups of elements, and the one form in which a Graph computes them.

Codes are -127 to 127, and the largest magnitude of a group is 127 times its scale (in groups of 32)::

    %a: 8x4xf32 = generic (d0:8, d1:4 | d2:32) max {abs(f32(%x[d0, 32*d1 + d2]))}
    %s: 8x4xf32 = generic (d0:8, d1:4) {%a[d0, d1] * (1/127)}
    %q: 8x4x32xi8 = generic (d0:8, d1:4, d2:32)
                      {i8(round(f32(%x[d0, 32*d1 + d2]) * select(%a[d0, d1] > 0, 127 / %a[d0, d1], 0)))}

Products emit this form (`mansard.passes.products.activations`), and schedules recognise it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.ir.scalar import Apply, Cast, Const, Scalar

F32, I8 = DType.F32, DType.I8
LARGEST = 127


@dataclass(frozen=True)
class Rounded:
    """The parts of a code's body: what is rounded is ``number * inverse``."""

    number: Scalar
    inverse: Scalar


def magnitude(number: Scalar) -> Scalar:
    """What is maximised over a group."""
    return Apply("abs", (number,), F32)


def scale(largest: Scalar) -> Scalar:
    """A group's scale."""
    return Apply("mul", (largest, Const(1 / LARGEST, F32)), F32)


def code(number: Scalar, largest: Scalar) -> Scalar:
    """An element's code."""
    return Cast(Apply("round", (Apply("mul", (number, _inverse(largest)), F32),), F32), I8)


def matched(body: Scalar, largest: Scalar, maximised: Scalar) -> Rounded | None:
    """The parts of a body that `code` gives for a group whose maximum of ``maximised`` is ``largest``; None
    for any other body, of which an integer may need more than seven bits."""
    if not isinstance(maximised, Apply) or maximised.op != "abs":
        return None
    (number,) = maximised.args
    return Rounded(number, _inverse(largest)) if body == code(number, largest) else None


def _inverse(largest: Scalar) -> Scalar:
    some = Apply("gt", (largest, Const(0.0, F32)), DType.BOOL)
    return Apply(
        "select", (some, Apply("div", (Const(float(LARGEST), F32), largest), F32), Const(0.0, F32)), F32
    )
