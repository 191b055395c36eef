"""Lockstep: the submissions of a call one after another across all devices, as runtimes without overlap do.

Everything else stays the same: the same recordings run on the same queues and wait for points of the same
kind, so the time of a call in lockstep compared to that of a normal call shows what overlap gains.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from mansard.errors import ArtifactError
from mansard.runtime.execution.recorded import RecordedSubmission
from mansard.runtime.memory.staged_upload import SubmissionId


def serial_order(submissions: Sequence[Sequence[RecordedSubmission]]) -> list[SubmissionId]:
    """Every submission of every slot, after those that it waits for.

    A device continues as long as it has a submission that may run, so that the order changes devices as
    rarely as possible. Raises ArtifactError when submissions wait for each other in a circle.
    """
    order: list[SubmissionId] = []
    done: set[SubmissionId] = set()
    pending = [list(range(len(local))) for local in submissions]
    while any(pending):
        before = len(order)
        for slot, local in enumerate(submissions):
            while (number := _next_ready(local, pending[slot], done)) is not None:
                order.append((slot, number))
                done.add((slot, number))
                pending[slot].remove(number)
        if len(order) == before:
            raise ArtifactError("submissions of the plan wait for each other in a circle")
    return order


def _next_ready(
    local: Sequence[RecordedSubmission], pending: Sequence[int], done: set[SubmissionId]
) -> int | None:
    return next((number for number in pending if done.issuperset(local[number].wait)), None)


def in_lockstep(submissions: Sequence[Sequence[RecordedSubmission]]) -> list[list[RecordedSubmission]]:
    """The submissions, each of which also waits for its predecessor in `serial_order`."""
    chained = [list(local) for local in submissions]
    for previous, (slot, number) in itertools.pairwise(serial_order(submissions)):
        submission = chained[slot][number]
        chained[slot][number] = replace(submission, wait=tuple(dict.fromkeys((*submission.wait, previous))))
    return chained
