"""The batches of a call one after another, on all devices together: how runtimes without overlap execute.

Nothing else changes: the same recordings run on the same queues and wait for the same kind of points, so
that a call in lockstep, measured beside the call itself, tells what overlap is worth.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from mansard.errors import ArtifactError
from mansard.runtime.execution.recording import RecordedBatch

Place = tuple[int, int]
"""A batch by device slot and number."""


def one_order(batches: Sequence[Sequence[RecordedBatch]]) -> list[Place]:
    """Every batch of every slot behind what it waits for.

    A device goes on as long as it has a batch that may run, so that devices hand over as rarely as one order
    allows. Raises ArtifactError when batches wait for each other in a circle.
    """
    order: list[Place] = []
    done: set[Place] = set()
    left = [list(range(len(own))) for own in batches]
    while any(left):
        before = len(order)
        for slot, own in enumerate(batches):
            while (number := next((n for n in left[slot] if done.issuperset(own[n].wait)), None)) is not None:
                order.append((slot, number))
                done.add((slot, number))
                left[slot].remove(number)
        if len(order) == before:
            raise ArtifactError("batches of the plan wait for each other in a circle")
    return order


def in_lockstep(batches: Sequence[Sequence[RecordedBatch]]) -> list[list[RecordedBatch]]:
    """The batches, each of which waits for the one before it in `one_order` as well."""
    found = [list(own) for own in batches]
    order = one_order(batches)
    for before, (slot, number) in itertools.pairwise(order):
        batch = found[slot][number]
        found[slot][number] = replace(batch, wait=tuple(dict.fromkeys((*batch.wait, before))))
    return found
