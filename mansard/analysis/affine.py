"""Integer reasoning in scalar bodies: affine forms, ranges and decided comparisons.

Arithmetic is followed where its range fits the type. Index arithmetic on extents is taken not to overflow i64
(no tensor has 2**62 elements), unless a literal of `LARGE` or more says that it is no index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mansard import dims
from mansard.analysis.linear import I64, Ends, Range, divide, span_between, type_range
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.scalar import Apply, Cast, Const, DimValue, Index, Scalar, children, walk
from mansard.ir.types import Linear

LARGE = 2**31
"""Literals below it are index arithmetic's: strides, window sizes, offsets."""
_NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


class Affine:
    """Affine forms and ranges of integer nodes over the iteration dims of one op.

    ``ends`` are the first and last value of each dim, when only a part of its extent matters.
    """

    def __init__(self, extents: Sequence[DimLike], ends: Mapping[int, Ends] | None = None) -> None:
        self.extents = tuple(extents)
        self.ends: dict[int, Ends] = {d: (0, dims.add(e, -1)) for d, e in enumerate(extents)}
        self.ends.update(ends or {})
        self.narrowed = bool(ends)
        # Entries hold their node: an id is only unique while the node lives.
        self._linear: dict[int, tuple[Scalar, Linear | None]] = {}
        self._range: dict[int, tuple[Scalar, Range]] = {}

    def linear(self, root: Scalar) -> Linear | None:
        """``root`` as an affine index of the iteration dims, or None."""
        if id(root) not in self._linear:
            for node in walk(root):
                if id(node) not in self._linear:
                    self._linear[id(node)] = (node, self._linear_of(node))
        return self._linear[id(root)][1]

    def range(self, root: Scalar) -> Range:
        """Inclusive bounds of an integer or bool node."""
        if id(root) not in self._range:
            for node in walk(root):
                if id(node) not in self._range and not node.dtype.is_float:
                    self._range[id(node)] = (node, self._range_of(node))
        return self._range[id(root)][1]

    def compare(self, op: str, a: Scalar, b: Scalar) -> bool | None:
        """The outcome of an integer comparison when it is the same at every point, else None."""
        low, high = self.difference(a, b)
        if op in ("ge", "ne", "gt"):
            inverse = self.compare(_NEGATED[op], a, b)
            return None if inverse is None else not inverse
        if op == "lt":
            return True if high < 0 else False if low >= 0 else None
        if op == "le":
            return True if high <= 0 else False if low > 0 else None
        return True if low == high == 0 else False if low > 0 or high < 0 else None

    def difference(self, a: Scalar, b: Scalar) -> Range:
        """Inclusive bounds of ``a - b`` over the integers."""
        la, lb = self.linear(a), self.linear(b)
        if la is not None and lb is not None:
            ends = self.span(la.plus(lb.scaled(-1)))
            if ends is not None:
                return dims.bounds(ends[0])[0], dims.bounds(ends[1])[1]
        (a_low, a_high), (b_low, b_high) = self.range(a), self.range(b)
        return a_low - b_high, a_high - b_low

    def span(self, linear: Linear) -> Ends | None:
        """The smallest and largest value of an affine index over the dims' ends."""
        return span_between(linear, self.ends)

    # Conditions -----------------------------------------------------------------------------
    def where(self, condition: Scalar, outcome: bool) -> Affine | None:
        """The same reasoning for the points at which ``condition`` has an outcome; None if nothing is won."""
        ends = self._narrowed(condition, outcome)
        return Affine(self.extents, {**self.ends, **ends}) if ends else None

    def _narrowed(self, condition: Scalar, outcome: bool) -> dict[int, Ends]:
        if not isinstance(condition, Apply):
            return {}
        if condition.op == "not":
            return self._narrowed(condition.args[0], not outcome)
        if (condition.op, outcome) in (("and", True), ("or", False)):
            return {
                **self._narrowed(condition.args[0], outcome),
                **self._narrowed(condition.args[1], outcome),
            }
        test = condition.op if outcome else _NEGATED.get(condition.op)
        if test is None or condition.args[0].dtype.is_float:
            return {}
        a, b = (self.linear(arg) for arg in condition.args)
        if a is None or b is None:
            return {}
        difference = a.plus(b.scaled(-1))
        if len(difference.terms) != 1:
            return {}
        (d, c) = difference.terms[0]
        if c not in (1, -1):
            return {}
        # c * d + offset (test) 0, written as a bound of d.
        bound = dims.mul(difference.offset, -c)
        return self._bounded(d, test if c == 1 else _MIRRORED[test], bound)

    def _bounded(self, d: int, test: str, bound: DimLike) -> dict[int, Ends]:
        low, high = self.ends[d]
        match test:
            case "lt":
                high = dims.minimum(high, dims.add(bound, -1))
            case "le":
                high = dims.minimum(high, bound)
            case "gt":
                low = dims.maximum(low, dims.add(bound, 1))
            case "ge":
                low = dims.maximum(low, bound)
            case "eq":
                low = high = bound
            case _:
                return {}
        if (low, high) == self.ends[d] or dims.bounds(dims.add(high, dims.mul(low, -1)))[1] < 0:
            return {}
        return {d: (low, high)}

    # Affine forms ---------------------------------------------------------------------------
    def _linear_of(self, node: Scalar) -> Linear | None:
        if not node.dtype.is_int:
            return None
        result = self._linear_rule(node)
        if result is None or (node.dtype is I64 and _largest_literal(result) < LARGE):
            return result
        low, high = type_range(node.dtype)
        ends = self.span(result)
        if ends is None or _lowest(ends[0]) < low or _highest(ends[1]) > high:
            return None
        return result

    def _linear_rule(self, node: Scalar) -> Linear | None:
        match node:
            case Index():
                low, high = self.ends[node.dim]
                return Linear((), low) if low == high else Linear.dim(node.dim)
            case Const():
                return Linear((), int(node.value))
            case DimValue():
                return Linear((), node.value)
            case Cast():
                return self._known(node.arg) if node.arg.dtype.is_int else None
            case Apply():
                return self._linear_apply(node)
            case _:
                return None

    def _known(self, node: Scalar) -> Linear | None:
        return self._linear[id(node)][1]

    def _linear_apply(self, node: Apply) -> Linear | None:
        forms = [self._known(a) for a in node.args if a.dtype.is_int]
        if any(f is None for f in forms) or len(forms) != len(node.args):
            return None
        known = [f for f in forms if f is not None]
        a, b = known[0], known[-1]
        match node.op:
            case "neg":
                return a.scaled(-1)
            case "add":
                return a.plus(b)
            case "sub":
                return a.plus(b.scaled(-1))
            case "mul" if not b.terms:
                return a.scaled(b.offset)
            case "mul" if not a.terms:
                return b.scaled(a.offset)
            case "floordiv" | "div" | "rem" if not b.terms:
                return self._linear_division(node.op, a, b.offset)
            case _:
                return None

    def _linear_division(self, op: str, a: Linear, divisor: DimLike) -> Linear | None:
        if dims.bounds(divisor)[0] <= 0:
            return None
        ends = self.span(a)
        # div and rem truncate: only for values that are not negative do they round down.
        if op != "floordiv" and (ends is None or dims.bounds(ends[0])[0] < 0):
            return None
        if not a.terms and op == "floordiv":
            return Linear((), dims.floordiv(a.offset, divisor))
        split = divide(a, divisor, self.extents)
        if split is None and not a.terms:
            quotient = dims.floordiv(a.offset, divisor)
            return Linear((), dims.mod(a.offset, divisor) if op == "rem" else quotient)
        if split is None:
            return None
        return split[1] if op == "rem" else split[0]

    # Ranges ---------------------------------------------------------------------------------
    def _range_of(self, node: Scalar) -> Range:
        low, high = type_range(node.dtype)
        linear = self.linear(node)
        ends = self.span(linear) if linear is not None else None
        if ends is not None:
            return max(low, dims.bounds(ends[0])[0]), min(high, dims.bounds(ends[1])[1])
        exact = self._range_rule(node)
        return exact if exact is not None and low <= exact[0] and exact[1] <= high else (low, high)

    def _range_rule(self, node: Scalar) -> Range | None:
        if isinstance(node, Const):
            return int(node.value), int(node.value)
        if any(kid.dtype.is_float for kid in children(node)):
            return None
        kids = [self.range(kid) for kid in children(node)]
        match node:
            case Cast():
                return (0, 1) if node.dtype is DType.BOOL else kids[0]
            case Apply():
                return _apply_range(node.op, kids)
            case _:
                return None


def _largest_literal(linear: Linear) -> int:
    parts = (linear.offset, *(coefficient for _, coefficient in linear.terms))
    return max((abs(c) for part in parts for _, c in dims.to_expr(part).terms), default=0)


def _lowest(end: DimLike) -> float:
    """A lower bound; minus infinity where bounds of expressions (`Expr.bounds`) are clamped."""
    low = dims.bounds(end)[0]
    return -math.inf if low == -dims.INT_MAX and not isinstance(end, int) else low


def _highest(end: DimLike) -> float:
    return -_lowest(dims.mul(end, -1))


def _apply_range(op: str, kids: Sequence[Range]) -> Range | None:
    a, b = kids[0], kids[-1]
    match op:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "neg":
            return -a[1], -a[0]
        case "mul":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case "select":
            (t, e) = kids[1:]
            return min(t[0], e[0]), max(t[1], e[1])
        case "floordiv" | "div" if b[0] > 0 and a[0] >= 0:
            return a[0] // b[1], a[1] // b[0]
        case "rem" if b[0] > 0 and a[0] >= 0:
            return 0, min(a[1], b[1] - 1)
        case "abs":
            return (0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))), max(abs(a[0]), abs(a[1]))
        case _:
            return None
