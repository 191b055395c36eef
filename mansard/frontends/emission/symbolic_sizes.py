"""Symbolic sizes that frameworks state as text, as dims."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.errors import ImportModelError
from mansard.frontends.linalg.module import AUTOMATIC_MAX
from mansard.python_syntax import parse_expression

_OPERATORS: dict[type[ast.operator], Callable[[DimLike, DimLike], DimLike]] = {
    ast.Add: dims.add, ast.Sub: lambda a, b: dims.add(a, dims.mul(b, -1)), ast.Mult: dims.mul,
    ast.FloorDiv: dims.floordiv, ast.Mod: dims.mod,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[DimLike, DimLike], DimLike]] = {
    "floordiv": dims.floordiv, "mod": dims.mod, "min": dims.minimum, "max": dims.maximum,
}  # fmt: skip


class SymbolicSizes:
    """The dims that symbols become, each the same wherever its name occurs. ``given`` are the user's, by
    name: a contract or a value."""

    def __init__(self, given: Mapping[str, Dim | int]) -> None:
        self._given, self._sizes = dict(given), dict[str, DimLike]()

    def resolve(self, name: str) -> DimLike:
        """The dim of a symbol."""
        if name not in self._sizes:
            given = self._given.get(name, Dim(_identifier(name), 1, AUTOMATIC_MAX))
            self._sizes[name] = given if isinstance(given, int) else dims.symbol(given)
        return self._sizes[name]

    def expression(self, text: str) -> DimLike:
        """An expression such as ``2*b + floordiv(c, 2)`` or ``4*h - 1``. Raises ImportModelError for
        others."""
        try:
            return self._value(parse_expression(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError) as error:
            raise ImportModelError(f"a size of {text} is not supported") from error

    def _value(self, node: ast.expr) -> DimLike:
        match node:
            case ast.Constant(value=int() as value):
                return value
            case ast.Name(id=name):
                return self.resolve(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return dims.mul(self._value(operand), -1)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self._value(left), self._value(right))
            case ast.Call(func=ast.Name(id=name), args=[a, b]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](self._value(a), self._value(b))
        raise ValueError(ast.unparse(node))

    def check_used(self, what: str = "model", known: Collection[str] = ()) -> None:
        """Raise ImportModelError for a given dim that no size has and that is not ``known``."""
        unknown = set(self._given) - set(self._sizes) - set(known)
        if unknown:
            have = ", ".join(sorted(self._sizes)) or "none"
            raise ImportModelError(f"the {what} has no symbolic dim {sorted(unknown)[0]!r}; it has: {have}")


def _identifier(name: str) -> str:
    """A dim's name in Mansard: letters, digits and underscores."""
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return text if text[:1].isalpha() or text[:1] == "_" else f"d_{text}"
