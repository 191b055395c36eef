"""Machine code loaded into executable memory."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from mansard.drivers.cpu.host import HostCpu
from mansard.errors import ArtifactError, DeviceError, TargetMismatchError
from mansard.hal import native
from mansard.hal.executable import EntryPoint, Executable, ExecutableSpec

FORMAT = "cpu-image"
_ARCHITECTURES = ("x86_64", "aarch64", "riscv64")


class Code:
    """Executable memory holding an image; freed when nothing refers to it any more.

    Recordings refer to it too, so that closing an executable never takes code from under them.
    """

    def __init__(self, image: bytes | memoryview) -> None:
        data = np.frombuffer(image, dtype=np.uint8)
        address = ctypes.c_uint64()
        native.check(native.core.mn_code_map(data.ctypes.data, data.size, ctypes.byref(address)))
        self.address = address.value
        finalizer = weakref.finalize(self, native.core.mn_code_unmap, self.address, data.size)
        finalizer.atexit = False


class CpuExecutable(Executable):
    """The kernels of one ``cpu-image``."""

    def __init__(self, spec: ExecutableSpec, cpu: HostCpu) -> None:
        """Load the image; raises what `check_spec` raises."""
        check_spec(spec, cpu)
        self.spec = spec
        self.entries: Mapping[str, EntryPoint] = MappingProxyType({e.name: e for e in spec.entries})
        self._code: Code | None = Code(spec.code)

    @property
    def code(self) -> Code:
        """The loaded code; raises DeviceError when the executable is closed."""
        if self._code is None:
            raise DeviceError("the executable is closed")
        return self._code

    def close(self) -> None:
        """Unload the code once no recording uses it. Closing twice is allowed."""
        self._code = None


def check_spec(spec: ExecutableSpec, cpu: HostCpu) -> None:
    """Raise TargetMismatchError when the CPU cannot run the code, ArtifactError when it is malformed."""
    if spec.format != FORMAT:
        raise TargetMismatchError(f"cpu loads {FORMAT} executables, not {spec.format!r}")
    arch = spec.target.removeprefix("cpu:").split("+", 1)[0]
    if arch in _ARCHITECTURES and arch != cpu.arch:
        raise TargetMismatchError(f"the code is for {arch}; this CPU ({cpu.name}) is {cpu.arch}")
    missing = [feature for feature in spec.requires if feature not in cpu.features]
    if missing:
        raise TargetMismatchError(
            f"the code for {spec.target} needs CPU features that {cpu.name} lacks: {', '.join(missing)}"
        )
    size = memoryview(spec.code).nbytes
    for entry in spec.entries:
        if not 0 <= entry.offset < size:
            raise ArtifactError(
                f"kernel {entry.name!r} starts at byte {entry.offset} of an image of {size} bytes"
            )
