"""Pages of a cache: which are free, and which hold the beginning of a text that others can use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

UNUSED = 0
"""The page that slots without a text write to, and that nobody reads."""
_Contents = tuple[int, tuple[int, ...]]
"""The number of the contents before a page (0: it begins a text), and the page's tokens."""


class PagePool:
    """``count`` pages of ``size`` positions. A page belongs to as many texts as have its contents in the same
    place behind the same text; one that belongs to none keeps them until it is needed (Kwon et al.,
    PagedAttention, SOSP 2023, and the prefix caching of the servers after it)."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count - 1, size
        self._free = list(range(count - 1, UNUSED, -1))
        self._users: dict[int, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        """Pages without a user that hold contents, those that were used last long ago first."""
        self._number_of: dict[_Contents, int] = {}
        self._page_of: dict[int, int] = {}
        """The page that holds the contents of a number."""
        self._contents: dict[int, _Contents] = {}
        """What a page holds."""
        self._numbers = 0

    @property
    def available(self) -> int:
        """Pages that no text uses."""
        return len(self._free) + len(self._kept)

    def match(self, text: Sequence[int]) -> tuple[list[int], list[int]]:
        """The pages that hold the beginning of a text, which it uses from now on with those that did, and the
        numbers of their contents."""
        pages: list[int] = []
        numbers: list[int] = []
        for start in range(0, len(text) - self.size + 1, self.size):
            before = numbers[-1] if numbers else 0
            number = self._number_of.get((before, tuple(text[start : start + self.size])))
            if number is None:
                break
            numbers.append(number)
            pages.append(self._page_of[number])
        for page in pages:
            self._kept.pop(page, None)
            self._users[page] = self._users.get(page, 0) + 1
        return pages, numbers

    def allocate(self) -> int | None:
        """A page for a text; None where all are in use."""
        if self._free:
            page = self._free.pop()
        elif self._kept:
            page, _ = self._kept.popitem(last=False)
            self._forget(page)
        else:
            return None
        self._users[page] = 1
        return page

    def publish(self, page: int, before: int, tokens: Sequence[int]) -> int:
        """A page is full of ``tokens``, behind contents with the number ``before``: other texts may go on
        with it. The number of the contents."""
        contents = (before, tuple(tokens))
        number = self._number_of.get(contents)
        if number is None:
            self._numbers += 1
            number = self._number_of[contents] = self._numbers
            self._page_of[number], self._contents[page] = page, contents
        return number

    def release(self, pages: Sequence[int]) -> None:
        """A text does not use pages any more."""
        for page in reversed(pages):  # the end of a text is given up before its beginning
            self._users[page] -= 1
            if self._users[page]:
                continue
            del self._users[page]
            if page in self._contents:
                self._kept[page] = None
            else:
                self._free.append(page)

    def clear(self) -> None:
        """Forget what the pages hold."""
        self._free += self._kept
        for page in list(self._contents):
            self._forget(page)
        self._kept.clear()

    def _forget(self, page: int) -> None:
        number = self._number_of.pop(self._contents.pop(page))
        del self._page_of[number]
