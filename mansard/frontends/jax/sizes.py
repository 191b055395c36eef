"""Symbolic sizes of JAX as dims."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.errors import ArtifactError, ImportModelError
from mansard.frontends.linalg.module import AUTOMATIC_MAX

_FUNCTIONS = {"floordiv", "mod", "max", "min"}


class Sizes:
    """The dims that symbolic sizes become, each the same wherever its name occurs."""

    def __init__(self, given: Mapping[str, Dim | int]) -> None:
        self._given, self._sizes = dict(given), dict[str, DimLike]()

    def resolve(self, name: str) -> DimLike:
        """The dim of a symbol."""
        if name not in self._sizes:
            given = self._given.get(name, Dim(name, 1, AUTOMATIC_MAX))
            self._sizes[name] = given if isinstance(given, int) else dims.symbol(given)
        return self._sizes[name]

    def shape(self, shape: Sequence[Any]) -> tuple[DimLike, ...]:
        """A shape of numbers and symbolic expressions."""
        return tuple(d if isinstance(d, int) else self._expression(d) for d in shape)

    def _expression(self, d: Any) -> DimLike:
        """An expression of JAX, which prints as ``2*b + floordiv(c, 2)``."""
        text = re.sub(r"(?<=[\w)]) - ", " + -1*", str(d))
        names = set(re.findall(r"[A-Za-z_]\w*", text)) - _FUNCTIONS
        values = {name: self.resolve(name) for name in names}
        fixed = {name: value for name, value in values.items() if isinstance(value, int)}
        symbols = {name: Dim(name, value, value) for name, value in fixed.items()}
        symbols |= {n: s for n, v in values.items() if isinstance(v, dims.Expr) for s in v.symbols()}
        try:
            expression = dims.parse(text, symbols)
        except ArtifactError as error:
            raise ImportModelError(f"a size of {d} is not supported: {error}") from error
        if fixed and len(fixed) < len(values):
            raise ImportModelError(f"a size of {d} with only some of its symbols fixed: {fixed}")
        return dims.evaluate(expression, fixed) if fixed else expression

    def check_used(self) -> None:
        """Raise ImportModelError for a given dim that no input has."""
        unknown = set(self._given) - set(self._sizes)
        if unknown:
            have = ", ".join(sorted(self._sizes)) or "none"
            raise ImportModelError(f"the function has no symbolic dim {sorted(unknown)[0]!r}; it has: {have}")
