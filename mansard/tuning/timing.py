"""Timing of variants of one kernel on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mansard import dims
from mansard.codegen.backend import CompiledDispatch
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import DeviceError, TargetMismatchError
from mansard.hal import (
    BarrierCommand,
    Buffer,
    BufferRef,
    Command,
    Device,
    DispatchCommand,
    Executable,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
)
from mansard.ir.dispatch import Dispatch
from mansard.ir.types import Value
from mansard.runtime.memory.tensors import empty
from mansard.runtime.memory.upload import upload

_MAX_SETS = 16
_MAX_COPIES = 1 << 30
"""Total bytes of the copies of a kernel's constants, unless a single copy is larger."""
_LOWERS_CLOCK = ("discrete", "integrated")
_WARMING_NS, _MAX_WARMING = 50_000_000, 4000
"""The warm-up time of a GPU before its times count, and the maximum number of warm-up runs. The clock of an
H200 that waits for the host drops from 1980 to 345 MHz within 1.5 s, and needs some tens of milliseconds of
work to recover."""
_BLOCK = 1 << 20
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class KernelWorkload:
    """The workload of a kernel in its model: its dispatch, which of its inputs are constants, values for the
    dims, and the bytes of constants that the whole model reads in a call."""

    dispatch: Dispatch
    constants: frozenset[int]
    sizes: dict[str, int]
    model_constants: int


def representative_sizes(symbols: Sequence[dims.Dim]) -> dict[str, int]:
    """A value for every dim within its contract, by `dims.representative`."""
    return {d.name: dims.evaluate(dims.representative(dims.symbol(d)), {}) for d in symbols}


class Stopwatch:
    """Runs variants of a kernel, interleaved, on buffers like the model's.

    Constants are read round-robin from several copies, so that no more of them is cached than in the model,
    where other layers' constants are read between two runs of a kernel.
    """

    def __init__(self, device: Device, workload: KernelWorkload) -> None:
        self._device, self._work = device, workload
        self._timeline = Semaphore("tuning")
        self._submitted = 0
        self._shortest = 0
        self._loaded: dict[str, Executable] = {}
        self._buffers: dict[tuple[int, int, int], Buffer] = {}
        values = workload.dispatch.inputs
        constant_bytes = sum(self._bytes(values[i]) for i in workload.constants)
        wanted = math.ceil(workload.model_constants / max(1, constant_bytes))
        self._sets = max(1, min(_MAX_SETS, wanted, _MAX_COPIES // max(1, constant_bytes)))

    def commands(self, variants: Sequence[CompiledDispatch], rounds: int) -> list[Command]:
        """``rounds`` runs of each variant, interleaved and sequential."""
        commands: list[Command] = []
        for turn in range(rounds):
            for variant in variants:
                commands += [self._dispatch(variant, turn % self._sets), BarrierCommand()]
        return commands

    def measure(self, variants: Sequence[CompiledDispatch], rounds: int) -> list[list[int]]:
        """Nanoseconds of ``rounds`` runs of each variant."""
        first = self._warming(variants[0])
        commands = [*self.commands(variants[:1], first), *self.commands(variants, rounds)]
        recorded = self._device.record(commands, profile=True)
        try:
            self._submitted += 1
            point = Point(self._timeline, self._submitted)
            self._device.submit([Submission(recorded, signal=(point,))])
            point.wait(_TIMEOUT_S)
            rows = recorded.profile()
        finally:
            recorded.close()
        spans = [row.end_ns - row.start_ns for row in rows]
        self._shortest = min(spans)
        return [spans[first + i :: len(variants)] for i in range(len(variants))]

    def _warming(self, variant: CompiledDispatch) -> int:
        """The number of warm-up runs of a variant, for a device that lowers its clock when idle."""
        if self._device.info.kind not in _LOWERS_CLOCK:
            return 0
        if self._shortest == 0:
            self._shortest = _WARMING_NS  # one run, to learn how long it takes
            self.measure([variant], 1)
        return min(_MAX_WARMING, -(-_WARMING_NS // max(1, self._shortest)))

    def loads(self, variant: CompiledDispatch) -> bool:
        """Whether the device loads a variant: a driver may reject code that is within every limit."""
        if variant.name not in self._loaded:
            try:
                self._loaded[variant.name] = self._device.load(variant.spec)
            except (DeviceError, TargetMismatchError):
                return False
        return True

    def close(self) -> None:
        """Free code and buffers."""
        for executable in self._loaded.values():
            executable.close()
        for buffer in self._buffers.values():
            buffer.close()
        self._loaded, self._buffers = {}, {}

    def forget(self, variant: CompiledDispatch) -> None:
        """Unload a variant's code."""
        executable = self._loaded.pop(variant.name, None)
        if executable is not None:
            executable.close()

    def _dispatch(self, variant: CompiledDispatch, copies: int) -> DispatchCommand:
        if not self.loads(variant):
            raise DeviceError(f"{self._device.info.id} does not load kernel {variant.name!r}")
        dispatch, sizes = self._work.dispatch, self._work.sizes
        bindings = []
        for place, value in enumerate((*dispatch.inputs, *dispatch.outputs)):
            size = self._bytes(value)
            if place in variant.packed:
                size = math.prod(variant.packed[place].shape) * value.type.dtype.itemsize
            copy = copies if place in self._work.constants else 0
            bindings.append(BufferRef(self._buffer(place, copy, size, value.type.dtype)))
        x, y, z = (dims.evaluate(d, sizes) for d in variant.grid)
        params = tuple(dims.evaluate(p, sizes) for p in variant.params)
        return DispatchCommand(self._loaded[variant.name], variant.name, tuple(bindings), params, (x, y, z))

    def _bytes(self, value: Value) -> int:
        size: DimLike = value.type.bytes
        return dims.evaluate(size, self._work.sizes)

    def _buffer(self, place: int, copy: int, size: int, dtype: DType) -> Buffer:
        key = (place, copy, size)
        if key not in self._buffers:
            alignment = max(256, self._device.capabilities.import_alignment)
            array = empty((max(1, size),), np.dtype(np.uint8), alignment)
            _fill(array, dtype)
            self._buffers[key] = self._held(array)
        return self._buffers[key]

    def _held(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Buffer:
        """The bytes in the memory kind that the model uses for weights and activations."""
        if self._device.capabilities.unified_memory and self._device.capabilities.import_host:
            return self._device.import_host(array)
        buffer = self._device.allocate(array.size, MemoryKind.DEVICE, "tuning")
        upload(self._device, buffer, [(0, array.view(np.uint8))])
        return buffer


def _fill(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], dtype: DType) -> None:
    """Random floats around 0; zeros of other types, since integers may be indices."""
    array[...] = 0
    if not dtype.is_float or dtype.bits < 8:
        return
    block = np.random.default_rng(0).uniform(-1, 1, _BLOCK).astype(dtype.numpy).view(np.uint8)
    for start in range(0, array.size, block.size):
        part = array[start : start + block.size]
        part[...] = block[: part.size]
