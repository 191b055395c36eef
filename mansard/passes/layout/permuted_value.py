"""Values in another order of their elements, across reshapes.

An image in channels-last order stays in it when a norm takes its channels in groups::

    %x: 1x64x8x8xf32               # in memory: %p: 1x8x8x64xf32
    %r: 1x16x4x8x8xf32 = reshape %x    # in memory: 1x8x8x16x4, a reshape of %p
    %m: 1x16x256xf32 = reshape %r      # in memory: 8x8x16x4; its last dim is three of these
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mansard import dims
from mansard.analysis.loops import delinearize, refine
from mansard.dims import DimLike
from mansard.ir.types import IndexMap, Linear
from mansard.passes.layout.split_loops import Splits, groups

Order = tuple[int, ...]


@dataclass(frozen=True)
class PermutedForm:
    """How a value's elements are ordered: its dims split into ``parts``, of which dim ``i`` in memory is
    ``parts[order[i]]``. ``groups`` are the parts of each dim of the value."""

    parts: tuple[DimLike, ...]
    groups: tuple[tuple[int, ...], ...]
    order: Order

    @staticmethod
    def of_dims(shape: Sequence[DimLike], order: Order) -> PermutedForm:
        """Whole dims in another order."""
        return PermutedForm(tuple(shape), tuple((i,) for i in range(len(shape))), order)

    @property
    def shape(self) -> tuple[DimLike, ...]:
        """The dims in memory."""
        return tuple(self.parts[i] for i in self.order)

    @property
    def is_whole(self) -> bool:
        """Whether no dim is split."""
        return all(len(group) == 1 for group in self.groups)

    @property
    def keeps_memory(self) -> bool:
        """Whether elements are in row-major order all the same."""
        kept = [i for i in self.order if not dims.is_one(self.parts[i])]
        return kept == sorted(kept)

    def reshaped(self, shape: Sequence[DimLike]) -> PermutedForm | None:
        """The form of a reshape to ``shape`` with the same memory; None where dims have no common parts."""
        parts = refine(self.parts, shape)
        if parts is None or 0 in parts:
            return None
        before, after = groups(parts, self.parts), groups(parts, shape)
        if before is None or after is None:
            return None
        order = tuple(i for d in self.order for i in before[d])
        place = {part: i for i, part in enumerate(order)}
        if all(place[b] == place[a] + 1 for group in after for a, b in pairwise(group)):
            real = sorted((d for d, group in enumerate(after) if group), key=lambda d: place[after[d][0]])
            units = (d for d, group in enumerate(after) if not group)
            return PermutedForm.of_dims(shape, (*units, *real))
        return PermutedForm(parts, tuple(map(tuple, after)), order)

    def reads(self, index_map: IndexMap, extents: Sequence[DimLike]) -> IndexMap | None:
        """The map into memory of an op that reads the value by ``index_map`` over loops of ``extents``; None
        if loops run over several parts of a dim."""
        places = [Linear()] * len(self.parts)
        for result, group in zip(index_map.results, self.groups, strict=True):
            if len(group) == 1:
                places[group[0]] = result
                continue
            found = delinearize(result, extents, [self.parts[i] for i in group])
            if found is None:
                return None
            for part, place in zip(group, found, strict=True):
                places[part] = place
        return IndexMap(tuple(places[i] for i in self.order), index_map.fill)

    def splits(self, index_map: IndexMap, extents: Sequence[DimLike]) -> Splits:
        """The loops to split so that `reads` has a map, as far as there are any."""
        wanted: Splits = {}
        for result, group in zip(index_map.results, self.groups, strict=True):
            parts = tuple(self.parts[i] for i in group)
            loop = result.single
            if len(group) > 1 and loop is not None and extents[loop] == dims.product(parts):
                wanted[loop] = parts
        return wanted
