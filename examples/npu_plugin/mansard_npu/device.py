"""The runtime half: a device with a queue and a thread of its own, which computes and keeps to its clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mansard.errors import TargetMismatchError
from mansard.hal import (
    Command,
    CopyCommand,
    DeviceInfo,
    DispatchCommand,
    Executable,
    ExecutableSpec,
    FillCommand,
)
from mansard.hal.threaded import Bytes, ThreadedDevice
from mansard_npu.clock import Clock, Overruns
from mansard_npu.library import FORMAT, FUNCTIONS
from mansard_npu.model import Model


class NpuExecutable(Executable):
    """A call of the library."""

    def __init__(self, spec: ExecutableSpec, call: Mapping[str, Any]) -> None:
        self.spec, self.call = spec, call
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})

    def close(self) -> None:
        """Nothing to unload."""


class NpuDevice(ThreadedDevice):
    """The simulated NPU. See `mansard_npu` on what it is. ``clock.speed`` may be changed while it runs."""

    def __init__(self, info: DeviceInfo, model: Model, clock: Clock | None = None) -> None:
        self.model, self.clock = model, clock or Clock()
        super().__init__(info, formats=(FORMAT,), memory=model.memory, unified=model.unified)

    def load(self, spec: ExecutableSpec) -> Executable:
        """Calls of functions that the library has; else TargetMismatchError."""
        if spec.format != FORMAT:
            raise TargetMismatchError(f"the simulated NPU loads {FORMAT!r}, not {spec.format!r}")
        if spec.requires:
            raise TargetMismatchError(f"the simulated NPU lacks {', '.join(spec.requires)}")
        try:
            call = json.loads(bytes(spec.code))
            function = call["function"]
        except (ValueError, KeyError, TypeError) as error:
            raise TargetMismatchError(f"this is no call of the simulated NPU: {error}") from error
        if function not in FUNCTIONS:
            raise TargetMismatchError(
                f"the simulated NPU has no function {function!r}; it has {', '.join(FUNCTIONS)}"
            )
        return NpuExecutable(spec, call)

    def run(self, command: DispatchCommand, memories: Sequence[Bytes]) -> None:
        """Call the function."""
        call = _call(command)
        FUNCTIONS[call["function"]](call.get("data"), memories, command.params)

    def pace(self, command: Command, crosses: bool, start: float) -> None:
        """Wait until the time of the performance model is up."""
        self.clock.spend(start, self._seconds(command, crosses))

    def overruns(self) -> Overruns:
        """How often computing took the host longer than the model says; figures count only without."""
        return self.clock.overruns()

    def _seconds(self, command: Command, crosses: bool) -> float:
        match command:
            case DispatchCommand():
                call = _call(command)
                if "dtype" not in call:
                    return self.model.launch
                products, operations, moved = command.params[:3]
                return self.model.call_seconds(call["dtype"], products, operations - products, moved)
            case CopyCommand() | FillCommand():
                return self.model.copy_seconds(command.size, crosses)
        return 0.0


def _call(command: DispatchCommand) -> Mapping[str, Any]:
    assert isinstance(command.executable, NpuExecutable)
    return command.executable.call
