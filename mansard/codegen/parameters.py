"""Schedule parameters: choices that change how a dispatch is computed, not what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.errors import CodegenError


@dataclass(frozen=True)
class Parameters:
    """Names with integer values, sorted by name; hashable, and equal exactly when all values are.

    A schedule says by its own names what can be chosen (tile sizes, unrolling, an order of loops). The
    empty Parameters are those of a schedule that leaves nothing to choose.
    """

    items: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, **values: int) -> Parameters:
        """``Parameters.of(rows=6, columns=2)``."""
        return cls(tuple(sorted(values.items())))

    @classmethod
    def from_mapping(cls, values: Mapping[str, int]) -> Parameters:
        """The opposite of `to_dict`."""
        return cls(tuple(sorted(values.items())))

    def to_dict(self) -> dict[str, int]:
        """Name to value, as stored in JSON."""
        return dict(self.items)

    def __getitem__(self, name: str) -> int:
        """A value by name. Raises CodegenError naming the parameters there are."""
        for key, value in self.items:
            if key == name:
                return value
        raise CodegenError(f"schedule parameters ({self}) have no {name!r}")

    def __bool__(self) -> bool:
        return bool(self.items)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.items)
