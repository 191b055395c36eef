"""Calls whose command buffers a device runs one behind the other, as one submission."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.hal import Point, Submission
from mansard.runtime.execution.context import Context, submission_error
from mansard.runtime.memory.tensors import Array


def takes_sequence(contexts: Sequence[Context]) -> bool:
    """Whether a device runs calls of the contexts one behind the other as one submission."""
    recorded = contexts[0].command_buffer
    if recorded is None or not recorded[1].sequential:
        return False
    return all(context.family is contexts[0].family for context in contexts)


def start_sequence(
    contexts: Sequence[Context], inputs: Sequence[Sequence[Array]], after: Sequence[Point]
) -> None:
    """Submit a call of each context, and return without waiting. No command of the first one runs before the
    points in ``after``; all calls have ended when the last one has, and fail with the error of any.

    An error in submitting them is raised, and every point of the calls is completed nevertheless.
    """
    begun: list[Context] = []
    try:
        started = []
        for context, arrays in zip(contexts, inputs, strict=True):
            begun.append(context)
            started.append(context.start_in_sequence(arrays))
        (first, *following), points = zip(*started, strict=True)
        assert contexts[0].command_buffer is not None
        device = contexts[0].environment.slots[contexts[0].command_buffer[0]].device
        device.submit([Submission(first, tuple(after), points, following=tuple(following))])
    except Exception as error:
        for context in begun:
            context.fail_unsubmitted(submission_error(error))
        raise
