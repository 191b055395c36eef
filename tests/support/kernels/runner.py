"""Runs single kernels for the tests of the emitters and of the math expansions.

On a CPU without a driver: the linked image is mapped executable and called. On Vulkan through its
driver; every SPIR-V module is validated first.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from mansard.codegen.kernel import Kernel, KernelBuilder, KValue
from mansard.codegen.llvm import target as cpu_target
from mansard.drivers.cpu.compiler import BACKEND as CPU
from mansard.drivers.cpu.host import host_cpu
from mansard.drivers.vulkan.compiler import BACKEND as VULKAN
from mansard.dtypes import DType
from mansard.hal import BufferRef, Device, DispatchCommand, MemoryKind, Point, Semaphore, Submission
from mansard.hal.executable import ExecutableSpec

VULKAN_TARGET = (
    "vulkan:1.3+float16+float64+subgroup_arithmetic+int64_atomics+subgroup_extended_types"
    "+nan_preserve+integer_dot_product+subgroup_clustered+workgroup=256+shared=32768"
)
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Machine:
    """Something to run kernels on: a CPU target's text, or ``vulkan``."""

    target: str

    @property
    def is_gpu(self) -> bool:
        return self.target == "vulkan"

    def run(
        self,
        kernel: Kernel,
        arrays: Sequence[np.ndarray],
        params: Sequence[int] = (),
        grid: _Grid = (1, 1, 1),
    ) -> None:
        """Run ``kernel``; the arrays are its buffers and hold the results after."""
        if self.is_gpu:
            _run_vulkan(kernel, arrays, params, grid)
        else:
            compile_cpu(kernel, self.target).run(kernel.name, arrays, params, grid)

    def map(
        self,
        body: Callable[..., KValue],
        inputs: Sequence[np.ndarray],
        dtypes: Sequence[DType],
        *,
        lanes: int = 1,
    ) -> np.ndarray:
        """``body(builder, *values)`` over equally long arrays; ``dtypes`` of the inputs and the output."""
        bodies = {dtypes[-1]: [body]}
        return self.map_all(bodies, inputs, dtypes[:-1], lanes=lanes)[0]

    def map_all(
        self,
        bodies: Mapping[DType, Sequence[Callable[..., KValue]]],
        inputs: Sequence[np.ndarray],
        dtypes: Sequence[DType],
        *,
        lanes: int = 1,
    ) -> list[np.ndarray]:
        """Several bodies in one kernel, by the element type of their results; ``dtypes`` of the inputs."""
        size = inputs[0].size
        # Lengths are rounded up to whole vectors by repeating the first elements.
        padded = [np.concatenate([a, a[: -size % lanes]]) for a in inputs]
        flat = [(dtype, body) for dtype, listed in bodies.items() for body in listed]
        results = [np.zeros(padded[0].size, dtype.numpy) for dtype, _ in flat]
        threads = 64 if self.is_gpu else 1
        bindings = [*((d, False) for d in dtypes), *((d, True) for d, _ in flat)]
        b = KernelBuilder("map", bindings, 1, workgroup=(threads, 1, 1))
        start = b.mul(b.local_id(0), b.idx(lanes))
        with b.for_(start, b.param(0), threads * lanes) as loop:
            values = [b.load(b.bindings[i], loop.index, lanes) for i in range(len(inputs))]
            for i, (_, body) in enumerate(flat):
                b.store(b.bindings[len(inputs) + i], loop.index, body(b, *values))
        self.run(b.build(), [*padded, *results], [padded[0].size])
        return [r[:size] for r in results]


def require_cpu(target: str) -> None:
    """Skip a test that runs code for a CPU target where this CPU lacks some of its features."""
    wanted, cpu = cpu_target.parse(target), host_cpu()
    if wanted.arch != cpu.arch:
        pytest.skip(f"this CPU is {cpu.arch}")
    if missing := wanted.features - cpu.features:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")


def machines() -> list[object]:
    """Pytest params: this CPU, the baseline of its architecture, and Vulkan."""
    base = cpu_target.parse("cpu").arch
    return [
        pytest.param(Machine("cpu"), id="cpu"),
        pytest.param(Machine(f"cpu:{base}"), id="cpu-baseline"),
        pytest.param(Machine("vulkan"), id="vulkan", marks=pytest.mark.vulkan),
    ]


class Image:
    """A mapped executable; ``run`` calls one of its entries."""

    def __init__(self, spec: ExecutableSpec) -> None:
        self._map = mmap.mmap(-1, len(spec.code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._map.write(bytes(spec.code))
        self._view = ctypes.c_char.from_buffer(self._map)
        self._base = ctypes.addressof(self._view)
        self.entries = {e.name: e for e in spec.entries}

    def run(
        self,
        name: str,
        arrays: Sequence[np.ndarray],
        params: Sequence[int] = (),
        grid: _Grid = (1, 1, 1),
        span: tuple[int, int] | None = None,
    ) -> None:
        entry = self.entries[name]
        assert (len(arrays), len(params)) == (entry.bindings, entry.params)
        table = np.array([a.ctypes.data for a in arrays] + list(params), dtype=np.int64)
        size = np.array(grid, dtype=np.uint32)
        begin, end = span or (0, int(np.prod(grid)))
        _FUNCTION(self._base + entry.offset)(table.ctypes.data, size.ctypes.data, begin, end)


def compile_cpu(kernel: Kernel, target: str = "cpu") -> Image:
    (spec,) = CPU.compile([kernel], CPU.parse_target(target))
    return Image(spec)


def validate(code: bytes | memoryview) -> None:
    """Fail with what spirv-val says; without the tool skip, but fail in CI."""
    tool = shutil.which("spirv-val")
    if tool is None:
        if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
            pytest.fail("spirv-val is not installed")
        pytest.skip("spirv-val is not installed")
    checked = subprocess.run(
        [tool, "--target-env", "vulkan1.3", "-"], input=bytes(code), capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr.decode()


def compile_vulkan(kernel: Kernel, target: str = VULKAN_TARGET) -> ExecutableSpec:
    """A validated module."""
    (spec,) = VULKAN.compile([kernel], VULKAN.parse_target(target))
    validate(spec.code)
    return spec


@functools.cache
def _vulkan_id() -> str | None:
    from mansard.hal import registry

    return next((i.id for i in registry.devices() if i.driver == "vulkan" and i.supported), None)


def _vulkan_device() -> Device | None:
    """The device that is open now: one that a test has lost is opened anew."""
    from mansard.hal import registry

    name = _vulkan_id()
    return registry.open_device(name) if name is not None else None


def _run_vulkan(kernel: Kernel, arrays: Sequence[np.ndarray], params: Sequence[int], grid: _Grid) -> None:
    spec = compile_vulkan(kernel)
    device = _vulkan_device()
    if device is None:
        pytest.skip("no Vulkan 1.3 device")
    executable = device.load(spec)
    buffers = [device.allocate(max(4, a.nbytes), MemoryKind.SHARED) for a in arrays]
    for buffer, array in zip(buffers, arrays, strict=True):
        buffer.view()[: array.nbytes] = array.view(np.uint8).reshape(-1)
    done = Point(Semaphore("kernel"), 1)
    refs = tuple(BufferRef(buffer) for buffer in buffers)
    commands = device.record([DispatchCommand(executable, kernel.name, refs, tuple(params), grid)])
    device.submit([Submission(commands, signal=(done,))])
    done.wait(60)
    for buffer, array in zip(buffers, arrays, strict=True):
        array.view(np.uint8).reshape(-1)[:] = buffer.view()[: array.nbytes]
    commands.close()
    executable.close()
    for buffer in buffers:
        buffer.close()
