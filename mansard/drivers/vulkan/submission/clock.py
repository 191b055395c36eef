"""Device timestamps as nanoseconds of the host's monotonic clock."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.context import DeviceContext
from mansard.drivers.vulkan.instance.features import CALIBRATED_TIMESTAMPS
from mansard.drivers.vulkan.instance.results import check
from mansard.drivers.vulkan.instance.snapshot import enumerate_all


def ticks_to_ns(ticks: int, reference: tuple[int, int], bits: int, period: float) -> int:
    """Host time of a timestamp, from one pair (device ticks, host ns) taken at about the same moment.

    The device's counter has ``bits`` valid bits and may have wrapped between the two, so their
    distance is taken as the shorter way round. ``period`` is nanoseconds per tick.
    """
    span = 1 << bits
    distance = (ticks - reference[0]) % span
    if distance >= span // 2:
        distance -= span
    return reference[1] + round(distance * period)


class DeviceClock:
    """Relates the device's timestamps to ``time.monotonic_ns``.

    With calibrated timestamps both clocks are read together whenever a profile is; else one pair is
    measured by ``sample``, which submits a timestamp and returns (ticks, host ns before, host ns after).
    """

    def __init__(self, context: DeviceContext, sample: Callable[[], tuple[int, int, int]]) -> None:
        self._context = context
        self._sample = sample
        self._calibrated = CALIBRATED_TIMESTAMPS in context.setup.extensions and self._has_domains()
        self._measured: tuple[int, int] | None = None

    def convert(self, ticks: Sequence[int]) -> list[int]:
        """Host times in ns of timestamps taken a moment ago."""
        reference = self._read_both() if self._calibrated else self._measure()
        bits, period = self._context.setup.timestamp_bits, self._context.snapshot.timestamp_period
        return [ticks_to_ns(tick, reference, bits, period) for tick in ticks]

    def _has_domains(self) -> bool:
        call = self._context.instance.commands.vkGetPhysicalDeviceCalibrateableTimeDomainsEXT
        domains = enumerate_all(
            lambda count, items: call(self._context.physical, count, items),
            ctypes.c_int32,
            "listing time domains",
        )
        return {vk.VK_TIME_DOMAIN_DEVICE_EXT, vk.VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT} <= set(domains)

    def _read_both(self) -> tuple[int, int]:
        domains = (vk.VK_TIME_DOMAIN_DEVICE_EXT, vk.VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT)
        infos = (vk.VkCalibratedTimestampInfoEXT * 2)(
            *(vk.VkCalibratedTimestampInfoEXT(timeDomain=domain) for domain in domains)
        )
        times, deviation = (ctypes.c_uint64 * 2)(), ctypes.c_uint64()
        check(
            self._context.commands.vkGetCalibratedTimestampsEXT(
                self._context.handle, 2, infos, times, ctypes.byref(deviation)
            ),
            "reading the device's clock",
        )
        mask = (1 << self._context.setup.timestamp_bits) - 1
        return times[0] & mask, times[1]

    def _measure(self) -> tuple[int, int]:
        if self._measured is None:
            # Of several samples the one with the shortest wait is the most exact.
            ticks, before, after = min((self._sample() for _ in range(3)), key=lambda s: s[2] - s[1])
            self._measured = ticks, (before + after) // 2
        return self._measured


def host_now() -> int:
    """The clock profiles are given in."""
    return time.monotonic_ns()
