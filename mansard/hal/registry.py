"""Drivers by name, found through the entry-point group ``mansard.drivers``."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Sequence
from typing import Any

from mansard.arguments import shown
from mansard.errors import DeviceError, DeviceUnavailableError, MansardError
from mansard.hal import discovery
from mansard.hal.device import Device, DeviceInfo, Driver

GROUP = "mansard.drivers"
_KINDS = {
    "cpu": 0,
    "discrete": 1,
    "integrated": 1,
    "virtual": 1,
    "software": 1,
    "npu": 2,
    "emulated": 2,
    "simulated": 3,
}
"""The order in which devices are listed, by kind: the CPU, GPUs, NPUs and others, and simulated ones."""


@functools.cache
def driver(name: str) -> Driver | None:
    """One driver; None when it is not installed. Other drivers are not even imported.

    A plug-in that cannot be imported raises MansardError naming it: a broken driver is not hidden.
    """
    value = discovery.find(GROUP, name)
    return None if value is None else _load(name, value)


@functools.cache
def drivers() -> dict[str, Driver]:
    """Every installed driver by name; each entry point names one `Driver` object.

    Raises what `driver` raises.
    """
    return {each.name: each for each in map(driver, _names()) if each is not None}


def _names() -> list[str]:
    import importlib.metadata

    return list(dict.fromkeys(entry.name for entry in importlib.metadata.entry_points(group=GROUP)))


def _load(name: str, value: str) -> Driver:
    module, _, attribute = value.partition(":")
    try:
        driver = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except Exception as error:
        raise MansardError(f"driver plug-in {name!r} ({value}) failed to load: {error}") from error
    if not isinstance(driver, Driver):
        raise MansardError(f"driver plug-in {name!r} ({value}) is not a mansard.hal.Driver object")
    return driver


def devices(name: str | None = None) -> list[DeviceInfo]:
    """Every device of one driver or of all, unsupported ones with their reasons; simulated ones last. A
    plug-in that cannot be imported is a device that cannot be used: it does not take the others away."""
    infos = [info for each in (_names() if name is None else [name]) for info in _listed(each)]
    return sorted(infos, key=lambda i: (_KINDS.get(i.kind, 2), i.driver, i.index))


def _listed(name: str) -> Sequence[DeviceInfo]:
    try:
        installed = driver(name)
    except MansardError as error:
        return (DeviceInfo(name, 0, f"plug-in {name}", name, (str(error),)),)
    return installed.devices() if installed is not None else ()


_open: dict[str, Device] = {}
_lock = threading.Lock()


def open_device(name: str) -> Device:
    """The open device called ``name`` (``cpu``, ``vulkan``, ``vulkan:1``); opened once per process.

    A device that was lost is closed and opened anew: models bound to it stay as they are, the next works.

    Raises DeviceUnavailableError naming what is present when there is no such device, or the
    reasons when it is below the baseline.
    """
    driver_name, colon, index_text = name.partition(":")
    if colon and not index_text.isdecimal():
        raise DeviceUnavailableError(
            f"no device {name!r}: behind the colon comes a number, as in {driver_name}:0"
        )
    index = int(index_text or 0)
    key = driver_name if index == 0 else f"{driver_name}:{index}"
    with _lock:
        if key in _open:
            if not _open[key].lost:
                return _open[key]
            _open.pop(key).close()
        owner = driver(driver_name)
        if owner is None:
            raise DeviceUnavailableError(
                f"no driver named {driver_name!r}; installed: {', '.join(sorted(drivers()))}"
            )
        infos = {info.index: info for info in owner.devices()}
        if index not in infos:
            present = ", ".join(i.id for i in infos.values()) or "none"
            raise DeviceUnavailableError(f"no device {name!r}; devices of driver {driver_name!r}: {present}")
        info = infos[index]
        if not info.supported:
            raise DeviceUnavailableError(
                f"device {name!r} ({info.name}) cannot be used: " + "; ".join(info.reasons)
            )
        _open[key] = owner.open(info)
        return _open[key]


def configure_driver(name: str, **settings: Any) -> None:
    """Settings for the devices of a driver that are not open yet; those of ``cpu``: docs/threads.md.

    Raises DeviceUnavailableError when there is no such driver, DeviceError when one of its devices is
    open, and InputError for a setting it does not have or a value that is wrong.
    """
    with _lock:
        owner = driver(name) if isinstance(name, str) else None
        if owner is None:
            raise DeviceUnavailableError(
                f"no driver named {shown(name)}; installed: {', '.join(sorted(drivers()))}"
            )
        used = [key for key in _open if key.partition(":")[0] == name]
        if used:
            raise DeviceError(
                f"device {used[0]} is open: configure it before the first model is loaded for it"
            )
        owner.configure(**settings)


def _start_anew() -> None:
    """After a fork: the devices are those of the parent, whose threads do not exist here."""
    global _lock  # noqa: PLW0603  # the parent's may be held by one of its threads
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_start_anew)
