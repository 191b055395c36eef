"""Repeated runs of one recording: the core's structs are made once, and a run fills in what changed."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mansard.drivers.cpu.commands import CpuCommandBuffer
from mansard.errors import DeviceError
from mansard.hal import core_abi, native
from mansard.hal.device import Launcher
from mansard.hal.queue import Queue
from mansard.hal.semaphore import Semaphore


class CpuLauncher(Launcher):
    """One submission, used for every run. Runs come one after another."""

    def __init__(self, queue: Queue, commands: CpuCommandBuffer, semaphore: Semaphore) -> None:
        self._queue, self._commands, self._semaphore = queue, commands, semaphore
        sizes = commands.slots
        self._sizes = [sizes.get(index, 0) for index in range(1 + max(sizes, default=-1))]
        self._addresses = (ctypes.c_uint64 * len(self._sizes))()
        self._signal = core_abi.PointStruct(semaphore.handle, 0)
        self._submission = core_abi.SubmissionDescStruct(
            signals=ctypes.pointer(self._signal),
            slots=ctypes.cast(self._addresses, ctypes.POINTER(ctypes.c_uint64)),
            work=commands.handle,
            token=0,  # nothing to report: the caller keeps alive what the run uses
            signal_count=1,
            slot_count=len(self._sizes),
        )
        self._reference = ctypes.byref(self._submission)

    def submit(self, value: int, arrays: Sequence[npt.NDArray[np.generic]]) -> None:
        """Submit one run; raises DeviceError for a missing or small array, or when the device is closed."""
        self._commands.check_open()
        for index, size in enumerate(self._sizes):
            if index >= len(arrays) or arrays[index].nbytes < size:
                bound = f"an array of {arrays[index].nbytes}" if index < len(arrays) else "none"
                raise DeviceError(f"binding slot {index} needs {size} bytes; bound to it is {bound}")
            self._addresses[index] = arrays[index].ctypes.data
        self._signal.value = value
        code = native.core.mn_queue_submit(self._queue.handle, self._reference, 1)
        if code != core_abi.OK:
            native.check(code)
