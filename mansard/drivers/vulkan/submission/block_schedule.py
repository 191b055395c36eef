"""Which blocks of a persistent kernel run which dispatches' workgroups.

A dispatch with fewer workgroups than there are blocks takes a part of them only. Successive ones that do so
take blocks one after another, so that those which do not depend on each other run at the same time, and what
depends on a dispatch does not queue behind workgroups of it::

    blocks      0 ... 27   28 ... 251   252 ... 263, 0 ... 3   4 ...
    dispatch    rotation   attention    scores of new rows     combination of the parts

Every block has a list of the dispatches in which it has workgroups, and passes over the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.drivers.vulkan.shaders.persistent import END

ALIGNMENT = 256
"""Of the lists together, in bytes."""


@dataclass(frozen=True)
class Share:
    """What a schedule knows of a dispatch."""

    groups: int | None
    """Its workgroups; None where every block takes a part of it."""
    everywhere: bool
    """Whether all blocks come to it in any case: they wait for each other there, or empty memory."""


@dataclass(frozen=True)
class BlockSchedule:
    """The first block of each dispatch, and the dispatches of each block."""

    starts: tuple[int, ...]
    lists: tuple[tuple[int, ...], ...]

    @property
    def stride(self) -> int:
        """Entries from one block's list to the next: an even number."""
        return (max(map(len, self.lists), default=0) + 2) // 2 * 2

    @property
    def bytes(self) -> int:
        """Bytes of all lists."""
        return -(-4 * self.stride * len(self.lists) // ALIGNMENT) * ALIGNMENT

    def words(self) -> list[int]:
        """The lists in memory, as words of 64 bits."""
        words: list[int] = []
        for steps in self.lists:
            row = [*steps, *[END] * (self.stride - len(steps))]
            words += [low | high << 32 for low, high in zip(row[::2], row[1::2], strict=True)]
        return words + [0] * (self.bytes // 8 - len(words))


def schedule(shares: Sequence[Share], blocks: int) -> BlockSchedule:
    """The schedule of successive dispatches on so many blocks."""
    starts: list[int] = []
    lists: list[list[int]] = [[] for _ in range(blocks)]
    cursor = 0
    for number, share in enumerate(shares):
        partly = share.groups is not None and share.groups < blocks
        starts.append(cursor if partly else 0)
        taking = {(cursor + n) % blocks for n in range(share.groups or 0)} if partly else range(blocks)
        for block in range(blocks) if share.everywhere else taking:
            lists[block].append(number)
        cursor = (cursor + (share.groups or 0)) % blocks if partly else 0
    return BlockSchedule(tuple(starts), tuple(map(tuple, lists)))
