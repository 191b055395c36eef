"""The Vulkan driver: lists physical devices and opens those that meet the baseline."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence

from mansard.drivers.vulkan.instance.device_setup import Candidate, describe_kind, make_setup, version_text
from mansard.drivers.vulkan.instance.loader import Instance, LoaderError
from mansard.drivers.vulkan.instance.memory_types import describe_heaps, describe_memory
from mansard.drivers.vulkan.instance.queues import describe_queues
from mansard.drivers.vulkan.instance.snapshot import Snapshot, read_snapshot
from mansard.errors import DeviceError, DeviceUnavailableError, InputError
from mansard.hal.device import Device, DeviceInfo, Driver

TARGET = "vulkan:1.3"
VALIDATION_VARIABLE = "MANSARD_VULKAN_VALIDATION"
LIMITS_VARIABLE = "MANSARD_VULKAN_LIMITS"
DISABLE_VARIABLE = "MANSARD_VULKAN_DISABLE"
SPARSE_VARIABLE = "MANSARD_VULKAN_SPARSE"
_SINCE = {
    "VK_KHR_cooperative_matrix": 1 << 22 | 3 << 12 | 255,
    "VK_NV_cooperative_matrix2": 1 << 22 | 4 << 12 | 303,
    "VK_KHR_shader_bfloat16": 1 << 22 | 4 << 12 | 315,
}
"""The version of Vulkan's registry that brought an extension."""
SETTINGS = ("limits", "disable")
_FORKED = (
    "Vulkan was in use before this process was forked off, and a driver of Vulkan does not survive a fork: "
    'start the process by the method "spawn" or "forkserver" of multiprocessing, or fork before the first '
    "use of Vulkan"
)
_KIND_ORDER = ("discrete", "integrated", "virtual", "", "software")


_drivers: weakref.WeakSet[VulkanDriver] = weakref.WeakSet()


class VulkanDriver(Driver):
    """Lists and opens Vulkan devices. The instance is made on first use and kept.

    Usable devices come first, then by kind: discrete, integrated, virtual, software; so ``vulkan``
    names the device most users want. ``validation`` (default: the environment variable
    ``MANSARD_VULKAN_VALIDATION``) turns the validation layer on. ``limits`` names a limit profile that
    every device is held to, ``disable`` features to do without (`mansard.drivers.vulkan.instance.restrict`);
    their
    defaults are ``MANSARD_VULKAN_LIMITS`` and the comma list ``MANSARD_VULKAN_DISABLE``. ``sparse`` (default:
    ``MANSARD_VULKAN_SPARSE``) makes buffers above what one allocation holds sparse, where a device can.
    """

    name = "vulkan"

    def __init__(
        self,
        *,
        validation: bool | None = None,
        limits: str | None = None,
        disable: Sequence[str] | None = None,
        sparse: bool | None = None,
    ) -> None:
        self._validation = validation
        self._limits = limits
        self._disable = disable
        self._sparse = sparse
        self._lock = threading.Lock()
        self._instance: Instance | None = None
        self._candidates: tuple[Candidate, ...] = ()
        self._infos: tuple[DeviceInfo, ...] = ()
        self._in_fork = False
        _drivers.add(self)

    def devices(self) -> Sequence[DeviceInfo]:
        """Every physical device; one entry with reasons when there is no loader, driver or device."""
        if self._in_fork:
            return (_absent(_FORKED),)
        with self._lock:
            if not self._infos:
                self._infos = self._list()
            return self._infos

    def after_fork(self) -> None:
        """A driver of Vulkan does not survive a fork: its threads and locks are those of the parent."""
        self._in_fork = self._in_fork or self._instance is not None
        self._lock = threading.Lock()  # the parent's may be held by one of its threads

    def configure(self, **settings: object) -> None:
        """Settings for devices opened later: ``limits`` and ``disable``, as for the constructor.

        An empty ``limits`` lifts the limits again. Raises InputError for a name that is not known.
        """
        super().configure(**{name: value for name, value in settings.items() if name not in SETTINGS})
        from mansard.drivers.vulkan.instance.restrict import check_feature, limit_profile

        limits, disable = settings.get("limits", self._limits), settings.get("disable", self._disable)
        if not isinstance(limits, str | None):
            raise InputError(f"limits must be the name of a limit profile, not {limits!r}")
        if isinstance(disable, str):
            disable = [disable]
        if disable is not None and not isinstance(disable, Sequence):
            raise InputError(f"disable must be names of features, not {disable!r}")
        if limits:
            limit_profile(limits)
        for name in disable or ():
            check_feature(name)
        with self._lock:
            self._limits, self._disable, self._infos = limits, disable, ()

    def open(self, info: DeviceInfo) -> Device:
        """Open a listed device; raises DeviceUnavailableError when it is below the baseline."""
        infos = self.devices()
        if not 0 <= info.index < len(infos):
            raise DeviceUnavailableError(f"no Vulkan device {info.index}; there are {len(infos)}")
        listed = infos[info.index]
        if listed.reasons:
            raise DeviceUnavailableError(
                f"{listed.id} ({listed.name}) cannot be used: {'; '.join(listed.reasons)}"
            )
        assert self._instance is not None, "a supported device was listed without an instance"
        # Listing devices needs neither the native core nor the rest of the driver.
        from mansard.drivers.vulkan.device import VulkanDevice

        return VulkanDevice(self._instance, self._candidates[info.index], listed)

    def validation_messages(self, *, clear: bool = False) -> list[str]:
        """What the validation layer has reported so far; empty without validation."""
        return [] if self._instance is None else self._instance.messages(clear=clear)

    def _list(self) -> tuple[DeviceInfo, ...]:
        try:
            if self._instance is None:
                self._instance = Instance(validation=self._wants_validation())
            candidates = [self._candidate(handle) for handle in self._instance.physical_devices()]
        except (LoaderError, DeviceError) as error:
            return (_absent(str(error)),)
        if not candidates:
            return (_absent("no Vulkan device is present"),)
        candidates.sort(key=lambda c: (bool(c.setup.reasons), _KIND_ORDER.index(describe_kind(c.snapshot))))
        self._candidates = tuple(candidates)
        return tuple(_describe(index, candidate) for index, candidate in enumerate(candidates))

    def _candidate(self, physical: int) -> Candidate:
        assert self._instance is not None
        snapshot = self._restricted(read_snapshot(self._instance.commands, physical))
        return Candidate(physical, snapshot, make_setup(snapshot, sparse=self._wants_sparse()))

    def _wants_sparse(self) -> bool:
        if self._sparse is not None:
            return self._sparse
        return os.environ.get(SPARSE_VARIABLE, "") not in ("", "0")

    def _restricted(self, snapshot: Snapshot) -> Snapshot:
        """The device as the settings let it appear."""
        limits, names, unknown = self._limits, self._disable, self._unknown_to_validation(snapshot)
        if limits is None:
            limits = os.environ.get(LIMITS_VARIABLE, "")
        if names is None:
            names = [name for name in os.environ.get(DISABLE_VARIABLE, "").split(",") if name]
        if not limits and not names and not unknown:
            return snapshot
        from mansard.drivers.vulkan.instance.restrict import disable, limit_profile, restrict

        return disable(restrict(snapshot, limit_profile(limits)) if limits else snapshot, (*names, *unknown))

    def _unknown_to_validation(self, snapshot: Snapshot) -> list[str]:
        """Extensions newer than the validation layer, which would call every use of them an error."""
        if self._instance is None or not self._instance.validation:
            return []
        known = self._instance.layer_version
        return [n for n, version in _SINCE.items() if n in snapshot.extensions and version > known]

    def _wants_validation(self) -> bool:
        if self._validation is not None:
            return self._validation
        return os.environ.get(VALIDATION_VARIABLE, "") not in ("", "0")


def _absent(reason: str) -> DeviceInfo:
    return DeviceInfo("vulkan", 0, "no Vulkan device", TARGET, reasons=(reason,))


def _describe(index: int, candidate: Candidate) -> DeviceInfo:
    snapshot, setup = candidate.snapshot, candidate.setup
    return DeviceInfo(
        driver="vulkan",
        index=index,
        name=f"{snapshot.name} held to {snapshot.profile}" if snapshot.profile else snapshot.name,
        target=TARGET,
        reasons=setup.reasons,
        api_version=version_text(snapshot.api_version),
        driver_version=snapshot.driver or str(snapshot.driver_version),
        kind=describe_kind(snapshot),
        heaps=describe_heaps(snapshot),
        features=setup.features,
        limits=setup.limits,
        memory_types=describe_memory(snapshot),
        queues=describe_queues(snapshot),
        extensions=setup.extensions,
    )


def _after_fork() -> None:
    for driver in _drivers:
        driver.after_fork()


os.register_at_fork(after_in_child=_after_fork)
DRIVER = VulkanDriver()
