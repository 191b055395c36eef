"""Symbolic dimensions: integer expressions over named, bounded symbols.

Shapes are tuples whose items are ``int`` or `Expr`. An `Expr` is a polynomial with integer
coefficients over *atoms*; an atom is a symbol (`Dim`) or an opaque call (``floordiv``, ``mod``,
``min``, ``max``). The form is canonical, so two equal polynomials compare equal, and bounds of
symbols simplify the expressions that frontends build (``min(s, 0)`` is 0 when ``s >= 1``).

The text form (``str(expr)``, read back by `parse`) is what artifacts store.
"""

from __future__ import annotations

import ast
import functools
import keyword
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Union

from mansard.arguments import integer, shown
from mansard.errors import ArtifactError, ShapeContractError
from mansard.python_syntax import parse_expression

INT_MAX = 2**62


@dataclass(frozen=True)
class Dim:
    """A named dimension with its contract: ``min <= value <= max`` and ``value % multiple == 0``.

    Two dims with the same name are the same symbol; a model states each contract once. ``typical`` is the
    value assumed for costs and tile sizes; it is not part of the contract. Raises ShapeContractError for a
    contract that no value satisfies, and for what is no name or no number.
    """

    name: str
    min: int = 1
    max: int = INT_MAX
    multiple: int = 1
    typical: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _is_symbol(self.name):
            raise ShapeContractError(
                f"{shown(self.name)} is not the name of a dim; it must be a string of letters, digits and "
                "underscores, such as 'batch'"
            )
        for field_name in ("min", "max", "multiple", "typical"):
            given = getattr(self, field_name)
            sound = type(given) is int and -INT_MAX <= given <= INT_MAX
            if not sound and not (field_name == "typical" and given is None):
                where = f"dim {self.name!r}: {field_name}"
                object.__setattr__(self, field_name, integer(where, given, ShapeContractError))
        if self.multiple < 1:
            raise ShapeContractError(f"dim {self.name!r}: multiple={self.multiple} must be at least 1")
        if self.min < 0 or -(-self.min // self.multiple) * self.multiple > self.max:
            of = f" that is a multiple of {self.multiple}" if self.multiple > 1 else ""
            raise ShapeContractError(
                f"dim {self.name!r}: no value{of} is at least 0 and from {self.min} to {self.max}"
            )

    def check(self, value: int, where: str) -> None:
        """Raise ShapeContractError when ``value`` is outside the contract. ``where`` names the input."""
        if not self.min <= value <= self.max:
            raise ShapeContractError(
                f"{where}: dim {self.name!r} is {value}; the model was compiled for {self.min} to {self.max}"
            )
        if value % self.multiple:
            raise ShapeContractError(
                f"{where}: dim {self.name!r} is {value}; the model was compiled for "
                f"multiples of {self.multiple}"
            )


@dataclass(frozen=True)
class DimFunction:
    """An opaque atom: ``op`` is one of floordiv, mod, min, max over two expressions."""

    op: str
    args: tuple[Expr, Expr]

    def __str__(self) -> str:
        return f"{self.op}({self.args[0]}, {self.args[1]})"


Atom = Union[Dim, DimFunction]
Monomial = tuple[tuple[Atom, int], ...]  # atoms with powers, sorted by text
DimLike = Union["Expr", int]


@functools.cache
def _is_symbol(name: str) -> bool:
    """Whether a dim can have the name: expressions are written and read (`parse`) as text."""
    simple = unicodedata.normalize("NFKC", name) == name
    return simple and name.isidentifier() and not keyword.iskeyword(name)


def _atom_text(atom: Atom) -> str:
    return atom.name if isinstance(atom, Dim) else str(atom)


@dataclass(frozen=True)
class Expr:
    """An integer expression in canonical form; build with `symbol`, operators and the functions below."""

    terms: tuple[tuple[Monomial, int], ...]

    # Construction ---------------------------------------------------------------------------
    def __add__(self, other: DimLike) -> Expr:
        return _from_terms([*self.terms, *to_expr(other).terms])

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return Expr(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: DimLike) -> Expr:
        return self + (-to_expr(other))

    def __rsub__(self, other: DimLike) -> Expr:
        return to_expr(other) - self

    def __mul__(self, other: DimLike) -> Expr:
        if not isinstance(other, Expr):  # the order of the terms stays
            return Expr(tuple((m, c * int(other)) for m, c in self.terms) if other else ())
        products = []
        for m1, c1 in self.terms:
            for m2, c2 in other.terms:
                products.append((_monomial_product(m1, m2), c1 * c2))
        return _from_terms(products)

    __rmul__ = __mul__

    # Queries --------------------------------------------------------------------------------
    @property
    def constant(self) -> int | None:
        """The value when the expression is a constant, else None."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    def symbols(self) -> frozenset[Dim]:
        """Every symbol in the expression."""
        atoms: set[Dim] = set()
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                if isinstance(atom, Dim):
                    atoms.add(atom)
                else:
                    atoms |= atom.args[0].symbols() | atom.args[1].symbols()
        return frozenset(atoms)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value under ``values`` (symbol name to int)."""
        total = 0
        for monomial, coefficient in self.terms:
            product = coefficient
            for atom, power in monomial:
                product *= _evaluate_atom(atom, values) ** power
            total += product
        return total

    def substitute(self, values: Mapping[str, DimLike]) -> DimLike:
        """The expression with symbols replaced, re-simplified."""
        total: DimLike = 0
        for monomial, coefficient in self.terms:
            product: DimLike = coefficient
            for atom, power in monomial:
                if isinstance(atom, Dim):
                    base: DimLike = values.get(atom.name, Expr(((((atom, 1),), 1),)))
                else:
                    a, b = (arg.substitute(values) for arg in atom.args)
                    base = _FUNCTIONS[atom.op](a, b)
                for _ in range(power):
                    product = product * base
            total = total + product
        return simplify(total)

    def bounds(self) -> tuple[int, int]:
        """Inclusive lower and upper bound, from the symbols' contracts (clamped to ±2**62)."""
        low = high = 0
        for monomial, coefficient in self.terms:
            m_low = m_high = 1
            for atom, power in monomial:
                a_low, a_high = _atom_bounds(atom)
                for _ in range(power):
                    corners = [m_low * a_low, m_low * a_high, m_high * a_low, m_high * a_high]
                    m_low, m_high = min(corners), max(corners)
            ends = (coefficient * m_low, coefficient * m_high)
            low += min(ends)
            high += max(ends)
        return max(low, -INT_MAX), min(high, INT_MAX)

    def divisor(self) -> int:
        """The largest integer known to divide every value of the expression."""
        result = 0
        for monomial, coefficient in self.terms:
            factor = abs(coefficient)
            for atom, power in monomial:
                if isinstance(atom, Dim):
                    factor *= atom.multiple**power
            result = math.gcd(result, factor)
        return result or 1

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        parts = []
        for monomial, coefficient in self.terms:
            factors = [_atom_text(a) for a, p in monomial for _ in range(p)]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return " + ".join(parts)

    __repr__ = __str__


def _monomial_product(left: Monomial, right: Monomial) -> Monomial:
    powers: dict[Atom, int] = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: _atom_text(item[0])))


def _from_terms(terms: Iterable[tuple[Monomial, int]]) -> Expr:
    merged: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        merged[monomial] = merged.get(monomial, 0) + coefficient
    kept = [(m, c) for m, c in merged.items() if c]
    kept.sort(key=lambda t: [(_atom_text(a), p) for a, p in t[0]], reverse=True)
    return Expr(tuple(kept))


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Dim):
        return values[atom.name]
    a, b = (arg.evaluate(values) for arg in atom.args)
    if b == 0 and atom.op in ("floordiv", "mod"):
        raise ShapeContractError(f"{atom} divides by 0 where {atom.args[1]} is 0")
    return {"floordiv": lambda: a // b, "mod": lambda: a % b,
            "min": lambda: min(a, b), "max": lambda: max(a, b)}[atom.op]()  # fmt: skip


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Dim):
        return atom.min, atom.max
    (a_low, a_high), (b_low, b_high) = atom.args[0].bounds(), atom.args[1].bounds()
    if atom.op == "min":
        return min(a_low, b_low), min(a_high, b_high)
    if atom.op == "max":
        return max(a_low, b_low), max(a_high, b_high)
    if atom.op == "mod":
        return (0, b_high - 1) if b_low > 0 else (-INT_MAX, INT_MAX)
    if b_low > 0:
        corners = [a_low // b_low, a_low // b_high, a_high // b_low, a_high // b_high]
        return min(corners), max(corners)
    return -INT_MAX, INT_MAX


def to_expr(value: DimLike) -> Expr:
    """``value`` as an Expr."""
    if isinstance(value, Expr):
        return value
    return Expr((((), int(value)),)) if value else Expr(())


def simplify(value: DimLike) -> DimLike:
    """``value`` as a plain int when it is constant, else the Expr."""
    if isinstance(value, int):
        return value
    constant = value.constant
    return value if constant is None else constant


def symbol(dim: Dim) -> DimLike:
    """The expression of one symbol; an int when its range holds one value."""
    if dim.min == dim.max:
        return dim.min
    return Expr(((((dim, 1),), 1),))


def _call(op: str, a: DimLike, b: DimLike) -> Expr:
    return Expr(((((DimFunction(op, (to_expr(a), to_expr(b))), 1),), 1),))


def exact_div(a: DimLike, b: DimLike) -> DimLike | None:
    """``a / b`` when ``b`` divides ``a`` for every value of the symbols (``b`` non-zero), else None."""
    if type(a) is int and type(b) is int:
        return (None if a % b else a // b) if b else (None if a else 0)
    ea, eb = to_expr(a), to_expr(b)
    if not ea.terms:
        return 0
    if not eb.terms:
        return None
    lead_b, cb = eb.terms[0]
    if len(eb.terms) > 1:
        quotient = exact_div(Expr((ea.terms[0],)), Expr((eb.terms[0],)))
        if quotient is not None and to_expr(quotient) * eb == ea:
            return quotient
        return None
    out = []
    for monomial, coefficient in ea.terms:
        powers = dict(monomial)
        for atom, power in lead_b:
            if powers.get(atom, 0) < power:
                return None
            powers[atom] -= power
            if not powers[atom]:
                del powers[atom]
        if coefficient % cb:
            return None
        rest = tuple(sorted(powers.items(), key=lambda item: _atom_text(item[0])))
        out.append((rest, coefficient // cb))
    return simplify(_from_terms(out))


def floordiv(a: DimLike, b: DimLike) -> DimLike:
    """``a // b`` rounded towards minus infinity; ``b`` must be positive."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    quotient = exact_div(a, b)
    if quotient is not None:
        return quotient
    (a_low, a_high), (b_low, _) = to_expr(a).bounds(), to_expr(b).bounds()
    if a_low >= 0 and a_high < b_low:
        return 0
    return _call("floordiv", a, b)


def mod(a: DimLike, b: DimLike) -> DimLike:
    """``a % b`` with the sign of ``b``; ``b`` must be positive."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if exact_div(a, b) is not None:
        return 0
    if isinstance(b, int) and to_expr(a).divisor() % b == 0:
        return 0
    (a_low, a_high), (b_low, _) = to_expr(a).bounds(), to_expr(b).bounds()
    if a_low >= 0 and a_high < b_low:
        return a
    return _call("mod", a, b)


def ceildiv(a: DimLike, b: int) -> DimLike:
    """``a / b`` rounded up; ``b`` must be positive."""
    return floordiv(add(a, b - 1), b) if b != 1 else a


def minimum(a: DimLike, b: DimLike) -> DimLike:
    """The smaller of two expressions, decided by their bounds where possible."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    low, high = (to_expr(a) - b).bounds()
    if high <= 0:
        return a
    if low >= 0:
        return b
    return _call("min", a, b)


def maximum(a: DimLike, b: DimLike) -> DimLike:
    """The larger of two expressions, decided by their bounds where possible."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    low, high = (to_expr(a) - b).bounds()
    if low >= 0:
        return a
    if high <= 0:
        return b
    return _call("max", a, b)


def literal(value: DimLike) -> int:
    """The constant term of a dim: 3 in ``2*n + 3``."""
    if isinstance(value, int):
        return value
    return next((coefficient for monomial, coefficient in value.terms if not monomial), 0)


def product(values: Iterable[DimLike]) -> DimLike:
    """The product of dims, simplified; 1 for none."""
    result: DimLike = 1
    for value in values:
        result = mul(result, value)
    return result


def add(*values: DimLike) -> DimLike:
    """The sum of dims, simplified."""
    for value in values:
        if type(value) is not int:
            break
    else:
        return sum(values)  # ints only: by far the most common case
    result: DimLike = 0
    for value in values:
        result = simplify(to_expr(result) + value)
    return result


def mul(a: DimLike, b: DimLike) -> DimLike:
    """The product of two dims, simplified."""
    if type(a) is int and type(b) is int:
        return a * b
    return simplify(to_expr(a) * b)


def bounds(value: DimLike) -> tuple[int, int]:
    """Inclusive bounds of an int or Expr."""
    return (value, value) if isinstance(value, int) else value.bounds()


def evaluate(value: DimLike, values: Mapping[str, int]) -> int:
    """The value of an int or Expr under ``values``."""
    return value if isinstance(value, int) else value.evaluate(values)


def representative(value: DimLike, typical: int = 128) -> int:
    """A typical size: the value with each symbol at its typical value, by default ``typical``, clamped to its
    bounds."""
    if isinstance(value, int):
        return value
    usual = {s.name: typical if s.typical is None else s.typical for s in value.symbols()}
    return value.evaluate({s.name: max(s.min, min(usual[s.name], s.max)) for s in value.symbols()})


def is_one(value: DimLike) -> bool:
    """True for the constant 1."""
    return isinstance(value, int) and value == 1


_FUNCTIONS: dict[str, Callable[[DimLike, DimLike], DimLike]] = {
    "floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum,
}  # fmt: skip


def parse(text: str | int, symbols: Mapping[str, Dim]) -> DimLike:
    """Parse the result of ``str(expr)``. Raises ArtifactError for any other text."""
    if isinstance(text, int):
        return text
    if len(text) > _MAX_TEXT:
        raise ArtifactError(f"not a dim expression: {_shown(text)} has {len(text)} characters")
    try:
        tree = parse_expression(text)
        return simplify(_parse_node(tree, symbols, text))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArtifactError(f"not a dim expression: {_shown(text)}") from error


_MAX_TEXT = 10_000
"""Characters of an expression: dims of models have some dozens."""
_MAX_TERMS = 1_000
"""Terms of a product while it is read, so that a short text cannot take hours."""


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}…")


def _parse_node(node: ast.expr, symbols: Mapping[str, Dim], text: str) -> DimLike:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in symbols:
        return symbol(symbols[node.id])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_parse_node(node.operand, symbols, text)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left = to_expr(_parse_node(node.left, symbols, text))
        right = to_expr(_parse_node(node.right, symbols, text))
        if isinstance(node.op, ast.Add):
            return left + right
        if len(left.terms) * len(right.terms) > _MAX_TERMS:
            raise ArtifactError(f"not a dim expression: {_shown(text)} has too many terms")
        return left * right
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _FUNCTIONS
        and len(node.args) == 2
    ):
        a, b = (simplify(_parse_node(arg, symbols, text)) for arg in node.args)
        if node.func.id in ("floordiv", "mod") and isinstance(b, int) and b < 1:
            raise ArtifactError(f"not a dim expression: {_shown(text)} divides by {b}")
        return _FUNCTIONS[node.func.id](a, b)
    raise ArtifactError(f"not a dim expression: {_shown(text)}")
