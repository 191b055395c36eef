"""Relations between the sizes of a call's inputs that a model was compiled for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard.dims import DimLike, Expr, bounds, evaluate, simplify, to_expr
from mansard.errors import ShapeContractError

RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "<=": operator.le, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True)
class ShapeConstraint:
    """``left relation right`` between dim expressions; ``relation`` is one of `RELATIONS`."""

    left: DimLike
    relation: str
    right: DimLike

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"

    @classmethod
    def of(cls, left: DimLike, relation: str, right: DimLike) -> ShapeConstraint:
        """The same relation with every term on the side where its coefficient is positive."""
        terms = (to_expr(right) - left).terms
        negative = Expr(tuple((monomial, -c) for monomial, c in terms if c < 0))
        positive = Expr(tuple((monomial, c) for monomial, c in terms if c > 0))
        return cls(simplify(negative), relation, simplify(positive))

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the dims that it relates, sorted."""
        used = to_expr(self.left).symbols() | to_expr(self.right).symbols()
        return tuple(sorted(symbol.name for symbol in used))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it holds for these values of the dims."""
        return RELATIONS[self.relation](evaluate(self.left, sizes), evaluate(self.right, sizes))

    @property
    def implied(self) -> bool:
        """Whether it holds for all sizes within the dims' ranges, as far as those tell."""
        low, high = bounds(to_expr(self.right) - self.left)
        if self.relation == "!=":
            return low > 0 or high < 0
        return low == high == 0 if self.relation == "==" else low >= (self.relation == "<")


def check_constraints(
    constraints: Sequence[ShapeConstraint], sizes: Mapping[str, int], origins: Mapping[str, str]
) -> None:
    """Raise ShapeContractError for the first constraint that these values of the dims violate.

    ``origins`` says for a dim where its value comes from, such as "input 'x', axis 0".
    """
    for constraint in constraints:
        if not constraint.holds(sizes):
            here = (
                f"{name}={sizes[name]}" + (f" ({origins[name]})" if name in origins else "")
                for name in constraint.symbols
            )
            raise ShapeContractError(
                f"the model was exported for sizes where {constraint}; this call has {', '.join(here)}"
            )
