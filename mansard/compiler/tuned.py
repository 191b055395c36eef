"""Results of tuning, kept between runs by device and kernel (`mansard.cache`)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mansard.cache import Folder, compiler_digest
from mansard.codegen.backend import Backend
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.hal.device import DeviceInfo
from mansard.hal.registry import devices


@dataclass(frozen=True)
class Tuned:
    """What a search found for a kernel: the parameters to use (None: the default), the times of the default
    and of these in nanoseconds, and how many of the candidates, in order, were tried."""

    parameters: Parameters | None
    default_ns: int
    best_ns: int
    tried: tuple[int, ...]


class TunedKernels:
    """Results for one device and the target its kernels are compiled for."""

    def __init__(self, device: DeviceInfo, target: KernelTarget, folder: Folder | None = None) -> None:
        threads = device.limits.get("threads", 0)
        # The best schedule depends on the code the compiler makes, so a new compiler starts anew.
        # So it may on the driver, where that is a compiler of its own.
        machine = f"{device.name} {device.driver_version} threads={threads}"
        self._prefix = f"{compiler_digest()}\n{machine}\n{target.name}\n"
        self._folder = folder or Folder("tuning")

    def get(self, key: str) -> Tuned | None:
        """The result for a kernel by its `dispatch_key`, if there is one."""
        data = self._folder.get(self._prefix + key)
        try:
            record = json.loads(data or b"null")
            if record is None:
                return None
            chosen = record["parameters"]
            parameters = None if chosen is None else Parameters.from_mapping(chosen)
            tried = tuple(int(place) for place in record["tried"])
            return Tuned(parameters, int(record["default_ns"]), int(record["best_ns"]), tried)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def put(self, key: str, result: Tuned) -> None:
        """Keep a result in place of an older one."""
        record = {
            "parameters": None if result.parameters is None else result.parameters.to_dict(),
            "default_ns": result.default_ns,
            "best_ns": result.best_ns,
            "tried": result.tried,
        }
        self._folder.put(self._prefix + key, json.dumps(record).encode())


def device_here(backend: Backend, target: KernelTarget) -> DeviceInfo | None:
    """The device of this machine that a target means; None for targets that mean another."""
    present = (info for info in devices(backend.name) if info.supported)
    return next((info for info in present if backend.stands_for(target, info)), None)


def tuned_here(backend: Backend, target: KernelTarget) -> TunedKernels | None:
    """Results for the device of this machine that a target means; None for targets that mean another."""
    device = device_here(backend, target)
    return TunedKernels(device, target) if device is not None else None
