"""Packed weights: the panel layout in which a kernel streams a constant operand.

A schedule may pack a constant that only its dispatch reads (`Dispatch.packable`); the artifact then stores
the packed form only. A constant with several readers stays dense, in one copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Panels:
    """The weights of a contraction as ``[columns / width][reduced / group][width][group]``, zero-padded.

    ``columns`` is (extent, stride in elements) of the loop over outputs in the dense constant, and
    ``reduced`` the same of the reduced loops, outermost first; together they walk it once. A panel
    is what a register tile of ``width`` columns reads, from its first to its last byte. ``group`` > 1
    puts that many reduced positions of a column side by side, as dot-product instructions want them. Groups
    begin anew with every run of the innermost reduced loop: zeros fill up its last one.

    With ``parts`` that many equal parts of a group alternate. Of integers of 4 bits, with two parts the low
    halves of the bytes are the first positions, in order, and the high halves those behind them; with four
    parts of eight positions, each four bits of both halves of a word are two neighbouring positions.
    """

    columns: tuple[int, int]
    reduced: tuple[tuple[int, int], ...]
    width: int
    group: int = 1
    parts: int = 1
    matrices: int = 1
    """Constants of that size, one behind the other, each of which is packed by itself."""

    @property
    def run(self) -> int:
        """Positions of the innermost reduced loop with the zeros that fill up its last group."""
        return -(-self._inner // self.group) * self.group

    @property
    def _inner(self) -> int:
        return self.reduced[-1][0] if self.reduced else 1

    @property
    def depth(self) -> int:
        """Reduced positions with these zeros."""
        return int(np.prod([extent for extent, _ in self.reduced[:-1]], dtype=np.int64)) * self.run

    @property
    def shape(self) -> tuple[int, ...]:
        """(panels of all matrices, groups of reduced positions, width), and the group where there is one."""
        panels = self.matrices * -(-self.columns[0] // self.width)
        shape = (panels, self.depth // self.group, self.width)
        return shape if self.group == 1 else (*shape, self.group)

    def pack(self, dense: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed copy of the dense constant."""
        if self.matrices > 1:
            one = replace(self, matrices=1)
            result = np.empty((self.matrices, *one.shape), dense.dtype)
            for packed, matrix in zip(result, dense.reshape(self.matrices, -1), strict=True):
                packed[...] = one.pack(matrix)
            return result.reshape(self.shape)
        flat = np.ascontiguousarray(dense).reshape(-1)
        loops = (*self.reduced, self.columns)
        walked = np.lib.stride_tricks.as_strided(
            flat,
            [extent for extent, _ in loops],
            [step * flat.itemsize for _, step in loops],
            writeable=False,
        )
        (columns, _), inner = self.columns, self._inner
        panels, groups = self.shape[:2]
        runs = int(np.prod([extent for extent, _ in self.reduced[:-1]], dtype=np.int64))
        padded = np.zeros((runs, self.run, panels * self.width), dense.dtype)
        padded[:, :inner, :columns] = walked.reshape(runs, inner, columns)
        split = padded.reshape(groups, self.group, panels, self.width).transpose(2, 0, 3, 1)
        if self.parts > 1:
            split = split.reshape(*split.shape[:-1], self.parts, self.group // self.parts).swapaxes(-1, -2)
        return np.ascontiguousarray(split).reshape(self.shape)
