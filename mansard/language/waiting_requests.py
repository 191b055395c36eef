"""The queue of a batch engine."""

from __future__ import annotations

import heapq
import itertools

from mansard.errors import MansardError, QueueFullError
from mansard.language.text_request import TextRequest


class WaitingRequests:
    """Requests that wait for a place: those with the highest priority first, then in order of arrival. Not
    thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._heap: list[tuple[int, int, TextRequest]] = []
        self._numbers = itertools.count()
        self._returned = itertools.count(1)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: TextRequest) -> None:
        """Queue a request; raises QueueFullError when as many wait as may."""
        if len(self._heap) >= self.limit:  # those that ended are taken out before the next step
            waiting = sum(entry[2].ending() is None for entry in self._heap)
            if waiting >= self.limit:
                raise QueueFullError(f"{waiting} requests wait already, the most that may")
        heapq.heappush(self._heap, (-request.wanted.priority, next(self._numbers), request))

    def pop(self) -> TextRequest | None:
        """The request that is next."""
        return heapq.heappop(self._heap)[2] if self._heap else None

    def put_back(self, request: TextRequest) -> None:
        """Queue a request again that had its turn, before all others of its priority."""
        heapq.heappush(self._heap, (-request.wanted.priority, -next(self._returned), request))

    def remove_ended(self) -> list[tuple[TextRequest, MansardError]]:
        """Take out requests that were cancelled or are past their deadline, with their errors."""
        ended = [(entry[2], error) for entry in self._heap if (error := entry[2].ending()) is not None]
        if ended:
            gone = {id(request) for request, _ in ended}
            self._heap = [entry for entry in self._heap if id(entry[2]) not in gone]
            heapq.heapify(self._heap)
        return ended

    def clear(self) -> list[TextRequest]:
        """Take out all requests."""
        waiting, self._heap = [entry[2] for entry in self._heap], []
        return waiting
