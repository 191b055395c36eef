"""Which bytes of a memory block are free: a first-fit list, without any memory of its own."""

from __future__ import annotations

import bisect


class FreeList:
    """Hands out aligned ranges of ``size`` bytes. Not thread-safe."""

    def __init__(self, size: int, alignment: int) -> None:
        self.size = size
        self.alignment = alignment
        self._free = [(0, size)]  # (begin, end), sorted, never touching each other

    def take(self, size: int) -> int | None:
        """The offset of a free range of at least ``size`` bytes, or None when none is large enough."""
        needed = self._rounded(size)
        for index, (begin, end) in enumerate(self._free):
            if end - begin >= needed:
                if end - begin == needed:
                    del self._free[index]
                else:
                    self._free[index] = (begin + needed, end)
                return begin
        return None

    def give(self, offset: int, size: int) -> None:
        """Return a range taken before, and join it with free neighbours."""
        begin, end = offset, offset + self._rounded(size)
        index = bisect.bisect(self._free, (begin, end))
        if index < len(self._free) and self._free[index][0] == end:
            end = self._free.pop(index)[1]
        if index and self._free[index - 1][1] == begin:
            begin = self._free.pop(index - 1)[0]
            index -= 1
        self._free.insert(index, (begin, end))

    @property
    def empty(self) -> bool:
        """Whether everything has been given back."""
        return self._free == [(0, self.size)]

    def _rounded(self, size: int) -> int:
        return -(-max(size, 1) // self.alignment) * self.alignment
