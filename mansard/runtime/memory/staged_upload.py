"""Staged upload of large inputs: the host fills staging memory while devices copy from it.

The copy of an input to device memory is split into pieces, each a submission that waits for a point of the
host's timeline. The call is submitted first; then the host copies the caller's arrays to staging memory and
signals after each piece. So a device fetches one piece while the host copies the next, and work that needs
no input begins at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.errors import CallCancelledError
from mansard.hal import Point, Semaphore
from mansard.plan.stores import Store
from mansard.runtime.memory.host_copy import Bytes, HostCopy, copy_all

MIN_PIECE_BYTES = 4 << 20
PIECE_OVERHEAD_S = 25e-6
"""The cost of one more piece: its submission is built and queued before the host begins to copy."""
LINK_BYTES_PER_S = 50e9
"""The last piece is fetched when the host has nothing left to copy, which takes its bytes over this rate."""

SubmissionId = tuple[int, int]
"""A submission of a call by device slot and number."""


@dataclass(frozen=True)
class UploadPiece:
    """The bytes of a store that the host fills before a submission runs."""

    store: Store
    begin: int
    size: int


def piece_bytes(total: int) -> int:
    """The piece size for inputs of ``total`` bytes that minimises the overhead of the pieces plus the time
    of fetching the last one: on an H200 a 7th of 64 MB."""
    return max(MIN_PIECE_BYTES, round(math.sqrt(total * PIECE_OVERHEAD_S * LINK_BYTES_PER_S)))


def split_upload(size: int, limit: int) -> list[tuple[int, int]]:
    """Begin and size of the pieces, of up to ``limit`` bytes, that ``size`` bytes are fetched in."""
    count = -(-size // limit)
    step = -(-size // count // 4096) * 4096
    return [(begin, min(step, size - begin)) for begin in range(0, size, step)]


class StagedUpload:
    """The pieces that the host fills in each call of a context, in the order of the waiting submissions."""

    def __init__(self, pieces: Mapping[SubmissionId, UploadPiece]) -> None:
        self.stores = {piece.store for piece in pieces.values()}
        self._pieces = list(pieces.values())
        self._values = {submission: number + 1 for number, submission in enumerate(pieces)}
        self._semaphore, self._base = Semaphore("inputs"), 0
        self._begun = self._filled = False

    def points(self, slot: int, number: int) -> tuple[Point, ...]:
        """The points that a submission of the current or next call waits for."""
        value = self._values.get((slot, number))
        return () if value is None else (Point(self._semaphore, self._base + value),)

    def begin(self) -> None:
        """A call is about to be submitted."""
        self._begun = True

    def fill(self, sources: Mapping[Store, Bytes], targets: Mapping[Store, Bytes]) -> bool:
        """Copy and signal all pieces, unless this call has done so before; returns whether it copied."""
        if self._filled:
            return False
        self._filled = True
        copies = []
        for number, piece in enumerate(self._pieces):
            span = slice(piece.begin, piece.begin + piece.size)
            done = Point(self._semaphore, self._base + number + 1)
            copies.append(HostCopy(sources[piece.store][span], targets[piece.store][span], done))
        copy_all(copies)
        return True

    def end(self) -> None:
        """End the submission of a call, complete or not: fail the points that have not been signalled."""
        if not self._begun:
            return
        last = self._base + len(self._pieces)
        for value in range(self._semaphore.value + 1, last + 1):
            self._semaphore.fail(value, CallCancelledError("the call was interrupted as it began"))
        self._base, self._begun, self._filled = last, False, False

    def renew(self) -> None:
        """Use a new timeline after failures: a timeline keeps the errors of its points."""
        self._semaphore, self._base = Semaphore(self._semaphore.label), 0


def in_submission_order(
    pieces: Mapping[SubmissionId, UploadPiece], order: Sequence[int]
) -> dict[SubmissionId, UploadPiece]:
    """Pieces in the order in which the slots receive their submissions."""
    return dict(sorted(pieces.items(), key=lambda item: (order.index(item[0][0]), item[0][1])))
