"""Profiles that were measured on the devices of this machine (`mansard calibrate`), kept in the cache."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from mansard.cache import Folder
from mansard.hal.device import DeviceInfo
from mansard.targets.profile import DeviceProfile, LinkProfile

FOLDER = "calibration"


def calibrated(device: DeviceInfo) -> DeviceProfile | None:
    """The measured profile of a device, called as the device; None when it was not measured as it is now.

    Another driver version is another device, and so is a CPU of which the process may use other cores.
    """
    data = Folder(FOLDER).get(_key(device))
    try:
        return None if data is None else profile_from_data(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(device: DeviceInfo, profile: DeviceProfile) -> None:
    """Keep the measured profile of a device, in place of an older one."""
    Folder(FOLDER).put(_key(device), json.dumps(dataclasses.asdict(profile)).encode())


def forget() -> None:
    """Remove every measured profile."""
    shutil.rmtree(Folder(FOLDER).path, ignore_errors=True)


def profile_from_data(data: Mapping[str, Any]) -> DeviceProfile:
    """A profile from what `dataclasses.asdict` makes of it; raises KeyError or TypeError for other data."""
    links = {name: _link(link) for name, link in data["links"].items()}
    tables = {
        key: {
            name: tuple((size, rate) for size, rate in points) for name, points in data.get(key, {}).items()
        }
        for key in ("small", "deep", "kinds")
    }
    launches = tuple((size, seconds) for size, seconds in data.get("launches", ()))
    return DeviceProfile(
        **{**data, "link": _link(data["link"]), "links": links, "launches": launches, **tables}
    )


def _link(data: Mapping[str, Any]) -> LinkProfile:
    copies = tuple((size, seconds) for size, seconds in data.get("host_copies", ()))
    return LinkProfile(**{**data, "host_copies": copies})


def _key(device: DeviceInfo) -> str:
    cores = len(os.sched_getaffinity(0)) if device.on_host_cores else 0
    threads = device.limits.get("threads", 0)
    # What figures mean: other counts or other kernels to measure by, other figures.
    counted = "casts of factors are no operations; whole dispatches of different kernels in turn"
    device_text = f"{device.driver}\n{device.name}\n{device.driver_version}"
    return f"{device_text}\ncores={cores} threads={threads}\n{counted}"
