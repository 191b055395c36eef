"""The runtime half: the Hexagon NPU, which runs contexts that were compiled ahead of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mansard.errors import DeviceUnavailableError, InputError, TargetMismatchError
from mansard.hal import Device, DeviceInfo, DispatchCommand, Driver, Executable, ExecutableSpec
from mansard.hal.program import Program
from mansard.hal.threaded import Bytes
from mansard.hal.vendor import DEFAULT_LIMIT, VendorDevice
from mansard_qnn import vendor

_STAND_IN = "Qualcomm's emulator on this CPU: results are Qualcomm's, times say nothing of a chip"


class QnnExecutable(Executable):
    """A session of ONNX Runtime over a compiled context."""

    def __init__(self, spec: ExecutableSpec, program: Program, session: Any) -> None:
        self.spec, self.program, self.session = spec, program, session
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})

    def close(self) -> None:
        """Let go of the session."""
        self.session = None


class QnnDevice(VendorDevice):
    """A Hexagon NPU, or its emulator; calls are on the device's own thread, one after another."""

    def __init__(self, info: DeviceInfo, limit: float, settings: Mapping[str, str]) -> None:
        super().__init__(info, formats=(vendor.FORMAT,), limit=limit)
        self._settings = settings

    def load(self, spec: ExecutableSpec) -> Executable:
        """Programs whose code is an ONNX model, a compiled context as a rule; else TargetMismatchError."""
        self.check_format(spec)
        onnxruntime, _, _ = vendor.packages()
        try:
            program = Program.decode(spec.code)
            settings = vendor.options({**self._settings, **program.options})
            session = onnxruntime.InferenceSession(program.code, settings, enable_fallback=False)
        # ONNX Runtime has a class of exceptions for each of its codes.
        except Exception as error:
            raise TargetMismatchError(
                f"{self.info.id}: ONNX Runtime cannot load a region: {vendor.shown(error)}"
            ) from error
        return QnnExecutable(spec, program, session)

    def run(self, command: DispatchCommand, memories: Sequence[Bytes]) -> None:
        """Run a context on the bindings' own memory."""
        executable = command.executable
        assert isinstance(executable, QnnExecutable)
        program, session = executable.program, executable.session
        binding, scalars = session.io_binding(), program.scalar_values(command.params)
        arrays = program.arrays(memories, command.params)
        inputs = {tensor.name: array for tensor, array in zip(program.inputs, arrays, strict=False)} | scalars
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for tensor, array in zip(program.outputs, arrays[len(program.inputs) :], strict=True):
            binding.bind_output(tensor.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        session.run_with_iobinding(binding)


class QnnDriver(Driver):
    """One device, ``qnn``."""

    name = "qnn"

    def __init__(self) -> None:
        self._limit: float = DEFAULT_LIMIT
        self._options: Mapping[str, str] = {}

    def devices(self) -> Sequence[DeviceInfo]:
        """The NPU, its emulator, or why there is neither."""
        try:
            onnxruntime, qualcomm, _ = vendor.packages()
        except DeviceUnavailableError as error:
            return (DeviceInfo(self.name, 0, "Qualcomm Hexagon NPU", self.name, (str(error),), kind="npu"),)
        version = f"onnxruntime-qnn {qualcomm.__version__}, onnxruntime {onnxruntime.__version__}"
        reason = vendor.absence()
        name, kind = "Qualcomm Hexagon NPU", "npu"
        if vendor.is_emulated():
            name, kind = f"{name} ({_STAND_IN})", "emulated"
        reasons = () if reason is None else (reason,)
        return (DeviceInfo(self.name, 0, name, self.name, reasons, kind=kind, driver_version=version),)

    def configure(self, **settings: object) -> None:
        """``limit`` in seconds of a call; ``options`` of the provider, such as ``htp_performance_mode``."""
        known = {"limit": (int, float), "options": Mapping}
        for name, value in settings.items():
            if name not in known or not isinstance(value, known[name]):  # type: ignore[arg-type]
                raise InputError(f"{self.name} has no setting {name}={value!r}; it has {', '.join(known)}")
        self._limit = settings.get("limit", self._limit)  # type: ignore[assignment]
        self._options = settings.get("options", self._options)  # type: ignore[assignment]

    def open(self, info: DeviceInfo) -> Device:
        """A device of its own for every call."""
        if info.driver != self.name or info.reasons:
            raise DeviceUnavailableError(f"{info.id}: {'; '.join(info.reasons) or 'no Hexagon NPU'}")
        return QnnDevice(info, self._limit, self._options)


DRIVER = QnnDriver()
