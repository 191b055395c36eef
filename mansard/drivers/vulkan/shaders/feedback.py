"""What the driver says about pipelines it has made: how long each took, and whether its cache had it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable
from typing import Any

from mansard.drivers.vulkan import vk
from mansard.hal.executable import Build


class Feedback:
    """Creation feedback (core in Vulkan 1.3) of the pipelines made by one call.

    Make it before the call with the call's create infos, which it is then part of, and keep it until
    `builds` was read.
    """

    def __init__(self, infos: Any) -> None:
        self._of = (vk.VkPipelineCreationFeedback * len(infos))()
        self._chained = (vk.VkPipelineCreationFeedbackCreateInfo * len(infos))()
        size = ctypes.sizeof(vk.VkPipelineCreationFeedback)
        for i, (info, chained) in enumerate(zip(infos, self._chained, strict=True)):
            chained.sType = vk.VkPipelineCreationFeedbackCreateInfo().sType
            chained.pPipelineCreationFeedback = ctypes.cast(
                ctypes.addressof(self._of) + i * size, ctypes.POINTER(vk.VkPipelineCreationFeedback)
            )
            chained.pNext = info.pNext
            info.pNext = ctypes.addressof(chained)
        self._begun = time.perf_counter()

    def builds(self, entries: Iterable[str]) -> tuple[Build, ...]:
        """A record for each entry point, in the order of the create infos; read once the call is done."""
        share = (time.perf_counter() - self._begun) / max(1, len(self._of))
        records = []
        for entry, feedback in zip(entries, self._of, strict=True):
            if feedback.flags & vk.VK_PIPELINE_CREATION_FEEDBACK_VALID_BIT:
                hit = feedback.flags & vk.VK_PIPELINE_CREATION_FEEDBACK_APPLICATION_PIPELINE_CACHE_HIT_BIT
                records.append(Build(entry, feedback.duration / 1e9, bool(hit)))
            else:
                records.append(Build(entry, share))
        return tuple(records)
