"""The runtime half: OpenVINO's devices, whose asynchronous requests work on the bindings' own memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mansard.errors import (
    DeviceUnavailableError,
    ExecutionError,
    InputError,
    MansardError,
    TargetMismatchError,
)
from mansard.hal import Device, DeviceInfo, DispatchCommand, Driver, Executable, ExecutableSpec
from mansard.hal.program import Array, Program
from mansard.hal.threaded import Bytes
from mansard.hal.vendor import DEFAULT_LIMIT, Check, Done, VendorDevice
from mansard_openvino import vendor

NUMBERED = ("NPU", "CPU")
"""OpenVINO's devices by index, which are always listed; others (``GPU``, ``GPU.1``) come behind these."""
_STAND_IN = "stands in for an Intel NPU: results are OpenVINO's, times are the CPU's"


class OpenvinoExecutable(Executable):
    """A compiled model, and those of its requests that are idle."""

    def __init__(self, spec: ExecutableSpec, program: Program, model: Any) -> None:
        self.spec, self.program, self.model = spec, program, model
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})
        self.idle: list[Any] = []

    def close(self) -> None:
        """Let go of the model; requests that run keep it."""
        self.model = None
        self.idle = []


class OpenvinoDevice(VendorDevice):
    """One of OpenVINO's devices, with ``settings`` for every model that it compiles."""

    def __init__(
        self, info: DeviceInfo, name: str, requests: int, limit: float, settings: Mapping[str, str]
    ) -> None:
        super().__init__(info, formats=(vendor.FORMAT,), depth=requests, limit=limit)
        self.settings = {**vendor.settings(name), **settings}
        self._name = name
        self._calls: dict[int, _Call] = {}
        self._numbers = itertools.count()

    def load(self, spec: ExecutableSpec) -> Executable:
        """ONNX models, which OpenVINO compiles for the device; else TargetMismatchError."""
        self.check_format(spec)
        try:
            program = Program.decode(spec.code)
            core = vendor.core()
            settings = {**self.settings, **program.options}
            model = core.compile_model(core.read_model(program.code), self._name, settings)
        except (RuntimeError, ValueError) as error:
            raise TargetMismatchError(
                f"{self.info.id}: OpenVINO cannot load a region: {vendor.shown(error)}"
            ) from error
        return OpenvinoExecutable(spec, program, model)

    def start(self, command: DispatchCommand, memories: Sequence[Bytes], done: Done) -> Check:
        """Start an asynchronous request; its callback is the end of the dispatch."""
        from openvino import Tensor

        executable = command.executable
        assert isinstance(executable, OpenvinoExecutable)
        program = executable.program
        arrays = program.arrays(memories, command.params)
        arrays[len(program.inputs) : len(program.inputs)] = program.scalar_values(command.params).values()
        request = executable.idle.pop() if executable.idle else executable.model.create_infer_request()
        tensors = [Tensor(array, shared_memory=True) for array in arrays]
        outputs = len(arrays) - len(program.outputs)
        for number, tensor in enumerate(tensors[:outputs]):
            request.set_input_tensor(number, tensor)
        for number, tensor in enumerate(tensors[outputs:]):
            request.set_output_tensor(number, tensor)

        call = next(self._numbers)
        self._calls[call] = _Call(executable, request, arrays, done)
        request.set_callback(self._ended, call)
        request.start_async()
        return lambda: _failure(request, self.info.id)

    def _ended(self, number: int) -> None:
        """OpenVINO's callback, which knows calls by numbers: a request that held what holds it would stay."""
        call = self._calls.pop(number)
        call.executable.idle.append(call.request)
        call.done(None)


@dataclass(frozen=True)
class _Call:
    """A request that runs. OpenVINO uses the arrays without keeping them."""

    executable: OpenvinoExecutable
    request: Any
    arrays: Sequence[Array]
    done: Done


def _failure(request: Any, device: str) -> MansardError | None:
    """The failure of a request; OpenVINO calls no callback then."""
    try:
        if request.wait_for(0):
            request.wait()
    except RuntimeError as error:
        return ExecutionError(f"{device}: {vendor.shown(error)}")
    return None


class OpenvinoDriver(Driver):
    """The NPU, present or not, the CPU, which stands in for it, and GPUs."""

    name = "openvino"

    def __init__(self) -> None:
        self._requests, self._limit = 2, DEFAULT_LIMIT
        self._settings: dict[str, str] = {}

    def devices(self) -> Sequence[DeviceInfo]:
        """OpenVINO's devices; the NPU is always listed, with the reason where it is absent."""
        try:
            core = vendor.core()
        except MansardError as error:
            return tuple(
                DeviceInfo(self.name, index, f"OpenVINO {name}", f"{self.name}:{name.lower()}", (str(error),))
                for index, name in enumerate(NUMBERED)
            )
        present = list(core.available_devices)
        names = [*NUMBERED, *(name for name in present if name not in NUMBERED)]
        return tuple(self._info(core, index, name, present) for index, name in enumerate(names))

    def configure(self, **settings: object) -> None:
        """``requests`` in flight at a time, ``limit`` in seconds of a call, ``properties`` of OpenVINO's."""
        known = {"requests": int, "limit": (int, float), "properties": Mapping}
        for name, value in settings.items():
            if name not in known or not isinstance(value, known[name]):  # type: ignore[arg-type]
                raise InputError(
                    f"driver {self.name} has no setting {name}={value!r}; it has {', '.join(known)}"
                )
        self._requests = settings.get("requests", self._requests)  # type: ignore[assignment]
        self._limit = settings.get("limit", self._limit)  # type: ignore[assignment]
        self._settings = settings.get("properties", self._settings)  # type: ignore[assignment]

    def open(self, info: DeviceInfo) -> Device:
        """A device of its own for every call."""
        if info.driver != self.name or info.reasons:
            raise DeviceUnavailableError(f"{info.id}: {'; '.join(info.reasons) or 'no device of OpenVINO'}")
        name = info.target.partition(":")[2].upper()
        return OpenvinoDevice(info, name, self._requests, self._limit, self._settings)

    def _info(self, core: Any, index: int, name: str, present: Sequence[str]) -> DeviceInfo:
        import openvino

        target, version = f"{self.name}:{name.lower()}", str(openvino.__version__)
        if name not in present:
            reason = (
                f"OpenVINO {version} finds no {name}, or no driver for it (it finds {', '.join(present)})"
            )
            return DeviceInfo(self.name, index, f"Intel {name}", target, (reason,), kind="npu")
        product = core.get_property(name, "FULL_DEVICE_NAME")
        if name == "CPU":
            product, kind = f"{product} with OpenVINO ({_STAND_IN})", "emulated"
        else:
            kind = "npu" if name.startswith("NPU") else "discrete"
        return DeviceInfo(self.name, index, product, target, kind=kind, driver_version=version)


DRIVER = OpenvinoDriver()
