"""What the values of a StableHLO module stand for during an import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from mansard.dims import DimLike
from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.tensor import Tensor


@dataclass(eq=False)
class Pieces:
    """A tensor of which parts along an axis have been replaced, joined when something reads it.

    Loops write their results so, one row in each iteration; to join them once costs one copy.
    """

    emitter: Emitter
    base: Tensor
    axis: int
    parts: Mapping[int, Tensor]
    """Parts that do not overlap, by the index at which they begin."""
    _joined: Tensor | None = field(default=None, repr=False)

    @property
    def extent(self) -> DimLike:
        """The size of the axis."""
        return self.base.shape[self.axis]

    def part(self, start: int, size: DimLike) -> Tensor | None:
        """What lies at a place, where it is one of the parts."""
        known = self.parts.get(start)
        return known if known is not None and known.shape[self.axis] == size else None

    def joined(self) -> Tensor:
        """The whole tensor."""
        if self._joined is None:
            tensors: list[Tensor] = []
            end = 0
            extent = int(str(self.extent))
            for start in sorted(self.parts):
                if start > end:
                    tensors.append(self.emitter.part(self.base, self.axis, end, start - end))
                tensors.append(self.parts[start])
                end = start + int(str(self.parts[start].shape[self.axis]))
            if end < extent:
                tensors.append(self.emitter.part(self.base, self.axis, end, extent - end))
            self._joined = self.emitter.concat(tensors, self.axis)
        return self._joined


@dataclass(frozen=True, eq=False)
class Unsupported:
    """The result of an op that could not be imported: what reads it is not looked at."""


@dataclass(frozen=True, eq=False)
class Token:
    """A token, which orders effects and has no content."""


Entry: TypeAlias = Tensor | Pieces | Unsupported | Token | tuple["Entry", ...]
