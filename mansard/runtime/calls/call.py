"""The record of one call: its inputs and options, and the permit and context it holds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from mansard.runtime.calls.admission import Admission, PermitHolder
from mansard.runtime.calls.idle_contexts import IdleContexts, ShapeKey
from mansard.runtime.calls.limits import Deadline
from mansard.runtime.execution.context import Context
from mansard.runtime.execution.copy_counts import CopyCounts
from mansard.runtime.memory.signature import PreparedInputs
from mansard.runtime.memory.tensors import Array

_NO_COPIES = CopyCounts()


@dataclass(slots=True)
class Call(PermitHolder):
    """One run of a model."""

    inputs: PreparedInputs
    idle: IdleContexts
    """Where its context comes from and returns to."""
    profile: bool = False
    priority: int = 0
    deadline: Deadline | None = None
    """When the call is cancelled."""
    into: Sequence[Array] | None = None
    """Where outputs are written; None: new arrays."""
    timeout: Deadline | None = None
    """When a blocking caller stops waiting."""
    context: Context = field(init=False)
    """Set when the call starts."""
    holds_context: bool = False
    """Whether the context is in use by the call, and possibly by devices; written together with it."""
    started: bool = False
    """Whether anything of it may have been submitted."""
    token: int = 0
    """Of an awaited call: the name of the wait for its end (`Completions.when`)."""
    ending: threading.Lock | None = None
    """Of an awaited call: taken by the one who ends it, its completion or whoever cleans up after it."""
    submitted: float = 0.0
    """When it was submitted (`time.perf_counter`)."""
    copies: CopyCounts = _NO_COPIES
    """The copies it caused; set when it has ended."""

    @property
    def key(self) -> ShapeKey:
        """The shapes by which contexts are reused."""
        dims = self.inputs.dims
        return tuple(sorted(dims.items())) if dims else ()

    def time_left(self) -> float | None:
        """Seconds until its deadline or timeout, whichever comes first; None: no limit."""
        if self.deadline is None:
            return None if self.timeout is None else self.timeout.remaining
        if self.timeout is None:
            return self.deadline.remaining
        return min(self.deadline.remaining, self.timeout.remaining)

    def release(self, admission: Admission, *, keep: bool) -> None:
        """End the call: return its permit, and ``keep`` its context for other calls or close it.

        Where an interrupt ends this halfway, it can be called again.
        """
        if self.holds_context:
            if keep:
                self.idle.put(self)
            else:
                self.context.close()
                self.holds_context = False
        admission.release(self)
        self.held = False
