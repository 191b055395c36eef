"""Schedule parameters: choices that change how a dispatch is computed, not what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.errors import CodegenError


@dataclass(frozen=True)
class Parameters:
    """Names with integer values, sorted by name; hashable, and equal exactly when all values are.

    Each schedule defines the names of its parameters (tile sizes, unrolling, a loop order). A schedule
    without parameters has the empty Parameters.
    """

    items: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, **values: int) -> Parameters:
        """``Parameters.of(rows=6, columns=2)``."""
        return cls(tuple(sorted(values.items())))

    @classmethod
    def from_mapping(cls, values: Mapping[str, int]) -> Parameters:
        """The inverse of `to_dict`."""
        return cls(tuple(sorted(values.items())))

    def to_dict(self) -> dict[str, int]:
        """Name to value, as stored in JSON."""
        return dict(self.items)

    def __getitem__(self, name: str) -> int:
        """A value by name. Raises CodegenError with the existing parameters."""
        for key, value in self.items:
            if key == name:
                return value
        raise CodegenError(f"schedule parameters ({self}) have no {name!r}")

    def __bool__(self) -> bool:
        return bool(self.items)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.items)
