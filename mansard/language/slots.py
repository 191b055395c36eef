"""The caches of a batch engine: who uses them, and what they hold that others can begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mansard.language.generation import Settings
from mansard.language.methods import IDLE
from mansard.language.text_request import TextRequest


@dataclass(eq=False)
class Slot:
    """One sequence of the cache.

    ``cached`` are the tokens whose keys and values it holds. A slot that is not in use takes part in decode
    steps all the same, at position 0, where attention is cheapest: that overwrites the keys and values of the
    first token only (``first_lost``), which are computed anew when the others are used again.
    """

    place: int
    rewinds: bool
    cached: list[int] = field(default_factory=list)
    first_lost: bool = False
    request: TextRequest | None = None
    settings: Settings = IDLE
    generated: int = 0
    last: int = 0
    """The token chosen last, which the next decode step reads."""
    used: int = 0
    """When a request took the slot last, by a count of requests."""

    @property
    def reading(self) -> bool:
        """Whether the prompt of the slot's request is not yet in the cache as a whole."""
        return self.request is not None and self.generated == 0

    @property
    def generating(self) -> bool:
        """Whether the slot's request takes part in decode steps."""
        return self.generated > 0

    def reusable(self, ids: Sequence[int], penalised: bool) -> int:
        """How many tokens of a prompt need not be read again. The last one is, for its logits; all are where
        the tokens that occurred have to be noted for a penalty."""
        if penalised:
            return 0
        shared = common_prefix(self.cached, ids[:-1])
        if not self.rewinds:
            return shared if shared == len(self.cached) and not self.first_lost else 0
        return shared if shared > 1 or not self.first_lost else 0

    def take(self, request: TextRequest, settings: Settings, shared: int, used: int) -> None:
        """Begin a request, ``shared`` of whose tokens are used as they are."""
        self.request, self.settings, self.generated, self.used = request, settings, 0, used
        del self.cached[shared:]
        if not shared:
            self.first_lost = False
        request.reused = shared

    def release(self) -> None:
        """The request is over."""
        self.request, self.settings, self.generated = None, IDLE, 0

    def forget(self) -> None:
        """What the cache holds is not certain."""
        self.cached.clear()
        self.first_lost = False

    def idle_position(self) -> int:
        """Where a decode step that is not for this slot may write: behind the part of a prompt that has been
        read, or over the first token."""
        if self.request is not None and self.rewinds:
            return len(self.cached)
        self.first_lost = self.first_lost or bool(self.cached)
        return 0


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
