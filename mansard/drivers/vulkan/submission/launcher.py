"""Repeated runs of one recording, with little work for each."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mansard.drivers.vulkan.submission.queue import DeviceQueue
from mansard.drivers.vulkan.submission.recorder import VulkanCommandBuffer
from mansard.errors import DeviceError
from mansard.hal import core_abi
from mansard.hal.device import Launcher
from mansard.hal.semaphore import Semaphore


class VulkanLauncher(Launcher):
    """One submission, used for every run. Runs come one after another."""

    def __init__(self, queue: DeviceQueue, commands: VulkanCommandBuffer, semaphore: Semaphore) -> None:
        self._queue, self._commands, self._semaphore = queue, commands, semaphore
        self._signal = core_abi.PointStruct(semaphore.handle, 0)
        self._submission = core_abi.SubmissionDescStruct(
            signals=ctypes.pointer(self._signal),
            work=commands.handle,
            token=0,  # nothing to report: the caller keeps alive what the run uses
            signal_count=1,
        )
        self._reference = ctypes.byref(self._submission)

    def submit(self, value: int, arrays: Sequence[npt.NDArray[np.generic]]) -> None:
        """Submit one run; raises DeviceError for an array, a closed recording or a closed device."""
        if arrays:
            raise DeviceError("Vulkan devices bind buffers when recording; a run takes no arrays")
        if self._commands.closing:
            raise DeviceError("the commands of a submission are closed")
        self._signal.value = value
        self._queue.submit_prepared(self._reference)
