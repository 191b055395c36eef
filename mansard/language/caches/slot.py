"""One place of a batch engine: the request that has it, and what its cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mansard.language.generation import Settings
from mansard.language.methods import IDLE
from mansard.language.text_request import TextRequest


@dataclass(eq=False)
class Slot:
    """One of the texts that a decode step advances; ``place`` is its number.

    ``cached`` are the tokens whose keys and values the cache holds. Slots that are not in use take part in
    decode steps all the same, and compute tokens that nobody reads.
    """

    place: int
    cached: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    """The pages that hold these tokens, in order, where the cache is paged."""
    contents: list[int] = field(default_factory=list)
    """The numbers of what the full ones of these pages hold."""
    first_lost: bool = False
    """Whether a decode step has overwritten the keys and values of the first token."""
    request: TextRequest | None = None
    text: tuple[int, ...] = ()
    """The request's prompt; with the tokens generated so far, if it had to give up a place before."""
    settings: Settings = IDLE
    generated: int = 0
    """Tokens of the request that are there; 0 while its text is being read."""
    last: int = 0
    """The token chosen last, which the next decode step reads."""
    used: int = 0
    """When a request took the slot last, by a count of requests."""

    @property
    def reading(self) -> bool:
        """Whether the request's text is not yet in the cache as a whole."""
        return self.request is not None and self.generated == 0

    @property
    def generating(self) -> bool:
        """Whether the slot's request takes part in decode steps."""
        return self.generated > 0

    def take(self, request: TextRequest, settings: Settings, shared: int, used: int) -> None:
        """Begin a request, ``shared`` of whose tokens are used as they are."""
        self.request, self.settings, self.generated, self.used = request, settings, 0, used
        self.text = (*request.wanted.ids, *request.tokens)
        del self.cached[shared:]
        request.reused = shared

    def release(self) -> None:
        """The request is over, or waits again."""
        self.request, self.settings, self.generated, self.text = None, IDLE, 0, ()


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # comparing slices is far quicker than comparing tokens one by one
        middle = (low + high + 1) // 2
        if list(first[low:middle]) == list(second[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
