"""A call that was started and whose result is fetched later."""

from __future__ import annotations

from mansard.errors import CallCancelledError
from mansard.hal import ProfileRow
from mansard.hal.native import guarded
from mansard.hal.service import uninterrupted
from mansard.runtime.calls.call import Call
from mansard.runtime.calls.lifecycle import CallLifecycle
from mansard.runtime.memory.tensors import Array


class PendingCall:
    """A call in flight. It holds one of the session's permits until `result` or `cancel` is called, unless
    the model has states: the next call may then be submitted behind it."""

    def __init__(self, lifecycle: CallLifecycle, call: Call) -> None:
        self._lifecycle, self._call = lifecycle, call
        self._over = False
        self.rows: dict[str, list[ProfileRow]] = {}
        """The commands by device, of a profiled call whose result was fetched."""

    @property
    def done(self) -> bool:
        """Whether every device is done with the call, so that `result` does not wait."""
        return self._over or all(point.done() for point in self._call.context.timelines.finals)

    def result(self) -> list[Array]:
        """Wait for the call; its outputs, once. Raises what `Session.run` raises."""
        if self._over:
            raise CallCancelledError("the result of the call was fetched before, or the call was cancelled")
        self._over = True
        return guarded(self._lifecycle.settle, self._finish, self._call)

    def cancel(self) -> None:
        """Do without the result: the call is withdrawn, or ends in the background. Does nothing after
        `result`."""
        if not self._over:
            self._over = True
            error = CallCancelledError("the call was cancelled")
            uninterrupted(lambda: self._lifecycle.settle(self._call, error))

    def __del__(self) -> None:
        self.cancel()

    def _finish(self, call: Call) -> list[Array]:
        self._lifecycle.wait(call)
        if call.profile:
            names = [slot.name for slot in self._lifecycle.environment.slots]
            self.rows = dict(zip(names, call.context.profile(), strict=True))
        return self._lifecycle.finish(call)
