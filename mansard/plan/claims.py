"""Relations between dim expressions that a plan must satisfy: decided at load, or for the sizes of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.dims import DimLike, bounds, evaluate, to_expr
from mansard.errors import ArtifactError


@dataclass(frozen=True)
class Claim:
    """``small`` is at most ``large``, or with ``exact`` equal to it; ``what`` says so."""

    small: DimLike
    large: DimLike
    exact: bool
    what: str

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise ArtifactError when it does not hold for these values of the plan's dims."""
        small, large = evaluate(self.small, sizes), evaluate(self.large, sizes)
        if small > large or (self.exact and small != large):
            at = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise ArtifactError(f"{self.what}: {small} and {large} where {at}")


class Claims:
    """Collects claims. What does not depend on sizes is decided at once; the rest is `open`."""

    def __init__(self) -> None:
        self.open: list[Claim] = []

    def equal(self, a: DimLike, b: DimLike, what: str) -> None:
        """Claim that two expressions are equal; raises ArtifactError when they cannot be."""
        if a == b:
            return
        if isinstance(a, int) and isinstance(b, int):
            raise ArtifactError(f"{what}: {a} and {b}")
        low, high = bounds(to_expr(a) - b)
        if low > 0 or high < 0:
            raise ArtifactError(f"{what}: {a} and {b}")
        self.open.append(Claim(a, b, True, what))

    def at_most(self, small: DimLike, large: DimLike, what: str) -> None:
        """Claim that one expression is at most another; raises ArtifactError when it never is."""
        if isinstance(small, int) and isinstance(large, int):
            if small > large:
                raise ArtifactError(f"{what}: {small} and {large}")
            return
        if small == large:
            return
        low, high = bounds(to_expr(large) - small)
        if high < 0:
            raise ArtifactError(f"{what}: {small} and {large}")
        if low < 0:
            self.open.append(Claim(small, large, False, what))

    def check(self, sizes: Mapping[str, int]) -> None:
        """Decide what is open for the sizes of a call; raises ArtifactError."""
        for claim in self.open:
            claim.check(sizes)
