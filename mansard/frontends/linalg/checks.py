"""Checks that a frontend asks of an import: results of the function that become asserts of the Graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mansard.dims import DimLike


@dataclass(frozen=True)
class ResultCheck:
    """What must hold for a result of the imported function that is no output.

    With ``limits`` (low, high) every element of an integer tensor is in ``low … high - 1``, and ``message``
    names the op that reads them as indices; else every element of a bool tensor is true.
    """

    message: str
    location: str = ""
    limits: tuple[DimLike, DimLike] | None = None

    def substituted(self, values: Mapping[str, DimLike]) -> ResultCheck:
        """The check with symbols of its limits replaced."""
        if self.limits is None:
            return self
        low, high = (substituted(limit, values) for limit in self.limits)
        return replace(self, limits=(low, high))


def substituted(d: DimLike, values: Mapping[str, DimLike]) -> DimLike:
    """A dim with symbols replaced, by name."""
    return d if isinstance(d, int) else d.substitute(values)
