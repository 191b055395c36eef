"""Packed constants: weights stored in the order in which a kernel reads them.

A schedule may ask for another layout of a constant that only its dispatch reads (`Dispatch.packable`).
The artifact then holds the packed form alone. A constant with several readers stays dense, in one copy
that serves them all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard.ir.dispatch import DispatchGraph


@dataclass(frozen=True)
class Panels:
    """The weights of a contraction as ``[columns / width][reduced / group][width][group]``, zero-padded.

    ``columns`` is (extent, stride in elements) of the loop over outputs in the dense constant, and
    ``reduced`` the same of the reduced loops, outermost first; together they walk it once. A panel
    is what a register tile of ``width`` columns reads, from its first to its last byte. ``group`` > 1
    puts that many reduced positions of a column side by side, as dot-product instructions want them.
    """

    columns: tuple[int, int]
    reduced: tuple[tuple[int, int], ...]
    width: int
    group: int = 1

    @property
    def depth(self) -> int:
        """Reduced positions, unpadded."""
        return int(np.prod([extent for extent, _ in self.reduced], dtype=np.int64))

    @property
    def shape(self) -> tuple[int, ...]:
        """(panels, groups of reduced positions, width), and the group where there is one."""
        shape = (-(-self.columns[0] // self.width), -(-self.depth // self.group), self.width)
        return shape if self.group == 1 else (*shape, self.group)

    def pack(self, dense: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed copy of the dense constant."""
        flat = np.ascontiguousarray(dense).reshape(-1)
        loops = (*self.reduced, self.columns)
        walked = np.lib.stride_tricks.as_strided(
            flat,
            [extent for extent, _ in loops],
            [step * flat.itemsize for _, step in loops],
            writeable=False,
        )
        depth, (columns, _) = self.depth, self.columns
        panels, groups = self.shape[:2]
        padded = np.zeros((groups * self.group, panels * self.width), dense.dtype)
        padded[:depth, :columns] = walked.reshape(depth, columns)
        split = padded.reshape(groups, self.group, panels, self.width)
        return np.ascontiguousarray(split.transpose(2, 0, 3, 1)).reshape(self.shape)


def mark_packable(graph: DispatchGraph) -> DispatchGraph:
    """Dispatches with their ``packable`` constants: those that nothing else reads."""
    live = {graph.base(v) for v in graph.graph.live_outs()}
    readers = Counter(v for dispatch in graph.dispatches for v in dispatch.inputs)
    alone = {v for v in graph.graph.constants if readers[v] == 1 and v not in live}
    marked = [replace(d, packable=frozenset(alone & set(d.inputs))) for d in graph.dispatches]
    return replace(graph, dispatches=tuple(marked))
