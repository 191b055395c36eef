"""Selects of floats that are a maximum or a minimum of two values.

``max`` and ``min`` of a body give NaN where either value is NaN, and either zero where both are zero. A
select by an ordered comparison gives its last value where one is NaN: it is such an extreme where the other
value is known not to be NaN, or is asked for it.
"""

from __future__ import annotations

from mansard.ir.scalar import Apply, Const, Scalar

_EXTREMES = {"lt": "max", "le": "max", "gt": "min", "ge": "min"}
"""``select(x < c, c, x)`` is a maximum."""
_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def float_extreme(node: Apply) -> Scalar | None:
    """``select(x < c, c, x)`` with a literal ``c``, and ``select((x < y) | (y != y), y, x)``, as ``max``;
    with ``>`` as ``min``. Equal subtrees are expected to be one object. None for any other select."""
    condition, then, other = node.args
    if not (node.dtype.is_float and isinstance(condition, Apply)):
        return None
    if isinstance(then, Const):
        return _extreme(condition, then, other) if then.value == then.value else None
    if condition.op != "or":
        return None
    for test, unordered in (condition.args, condition.args[::-1]):
        if isinstance(test, Apply) and _is_nan(unordered, then):
            return _extreme(test, then, other)
    return None


def _is_nan(test: Scalar, value: Scalar) -> bool:
    if not isinstance(test, Apply) or test.op not in ("ne", "isnan"):
        return False
    return all(arg is value for arg in test.args)


def _extreme(test: Apply, then: Scalar, other: Scalar) -> Scalar | None:
    if test.op not in _EXTREMES:
        return None
    left, right = test.args
    if left is other and _same(right, then):
        return Apply(_EXTREMES[test.op], (other, then), then.dtype)
    if right is other and _same(left, then):
        return Apply(_EXTREMES[_SWAPPED[test.op]], (other, then), then.dtype)
    return None


def _same(a: Scalar, b: Scalar) -> bool:
    # Literals are few nodes and may be made twice; 0.0 and -0.0 are the same bound.
    return a is b or (isinstance(a, Const) and isinstance(b, Const) and a.value == b.value)
