"""Runs compiled plans of foreign CPUs under qemu-user, many in one process."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mansard import dims
from mansard.artifact.weights import storage
from mansard.compiler import CompiledModel
from mansard.plan.plan import DispatchStep, Plan
from mansard.runtime.memory.signature import Signature
from support.emulation import elf
from support.emulation.cpus import run_program

Arrays = list[np.ndarray]
_ALIGN = 64


@dataclass
class _Call:
    """One call of a model: where its outputs will be."""

    plan: Plan
    shapes: list[tuple[int, ...]]
    outputs: list[int]
    """Data offsets."""


class CrashError(AssertionError):
    """The program did not end well; ``call`` is the number of the call that ran, -1 before the first."""

    def __init__(self, message: str, call: int) -> None:
        super().__init__(message)
        self.call = call


@dataclass
class Batch:
    """Calls of models, collected to be run in one process."""

    arch: str
    cpu: str
    """As ``qemu -cpu`` takes it."""
    _code: bytearray = field(default_factory=bytearray)
    _data: bytearray = field(default_factory=lambda: bytearray(elf.HEADER.size))
    _launches: list[tuple[int, str, bytes]] = field(default_factory=list)
    """Call, kernel, and the launch as the runner reads it."""
    _calls: list[_Call] = field(default_factory=list)

    def load(self, model: CompiledModel) -> dict[str, int]:
        """Place the model's images; the address of each by entry name."""
        base = elf.code_address(self.arch)
        places = {}
        for entry, image in model.executables.items():
            self._code += bytes(-len(self._code) % elf.PAGE)
            places[entry] = base + len(self._code)
            self._code += image
        return places

    def call(self, model: CompiledModel, images: Mapping[str, int], inputs: Sequence[np.ndarray]) -> int:
        """Add a call of a model on its only device; returns its number."""
        plan = model.plan
        (device,) = plan.devices
        assert not plan.states
        prepared = Signature(plan.inputs, plan.dims).prepare(inputs, {})
        given = {spec.value: array for spec, array in zip(plan.inputs, prepared.arrays, strict=True)}
        where = {}
        for value in plan.values:
            initial = given.get(value.id)
            if initial is None and value.weight is not None:
                spec, load = model.weights[value.weight]
                initial = storage(spec, load())
            where[value.id] = self._place(dims.evaluate(value.bytes, prepared.dims), initial)
        for segment in device.segments:
            for step in segment.steps:
                if isinstance(step, DispatchStep):
                    image = device.executables[step.executable]
                    offset = next(k[4] for k in image.kernels if k[0] == step.entry)
                    launch = self._launch(step, images[image.entry] + offset, where, prepared.dims)
                    self._launches.append((len(self._calls), step.label, launch))
        shapes = [tuple(dims.evaluate(d, prepared.dims) for d in spec.shape) for spec in plan.outputs]
        self._calls.append(_Call(plan, shapes, [where[spec.value] for spec in plan.outputs]))
        return len(self._calls) - 1

    def run(self, without: Collection[int] = (), timeout: float = 300) -> list[Arrays]:
        """Run every call but those named by number; the outputs of each.

        Raises CrashError, which names the kernel that ran, when the program does not end well.
        """
        end = len(self._data)
        data = self._data + bytes(-end % 8)
        launches = [launch for launch in self._launches if launch[0] not in without]
        elf.HEADER.pack_into(data, 0, len(launches), elf.DATA + len(data), elf.DATA, end)
        data += b"".join(code for _, _, code in launches)
        done = run_program(
            self.arch, self.cpu, elf.program(self.arch, bytes(self._code), bytes(data)), timeout
        )
        if done.returncode or len(done.stdout) != end:
            started = 0
            while done.stderr[8 * started : 8 * started + 8] == struct.pack("<Q", started):
                started += 1
            call, kernel, _ = launches[started - 1] if started else (-1, "the start", b"")
            said = done.stderr[8 * started :].decode(errors="replace").strip()
            raise CrashError(f"the program ended with {done.returncode} in {kernel}: {said}", call)
        return [_outputs(call, done.stdout) for call in self._calls]

    def _place(self, size: int, initial: np.ndarray | None) -> int:
        self._data += bytes(-len(self._data) % _ALIGN)
        offset = len(self._data)
        if initial is None:
            self._data += bytes(size)
        else:
            assert initial.nbytes == size
            self._data += initial.tobytes()
        # Nothing reads or writes past a buffer: what follows it is not zero.
        self._data += b"\x7f" * _ALIGN
        return offset

    def _launch(
        self, step: DispatchStep, code: int, where: Mapping[int, int], sizes: Mapping[str, int]
    ) -> bytes:
        table = [elf.DATA + where[b.value] + dims.evaluate(b.offset, sizes) for b in step.bindings]
        table += [dims.evaluate(p, sizes) for p in step.params]
        grid = [dims.evaluate(g, sizes) for g in step.grid]
        self._data += bytes(-len(self._data) % 8)
        place = elf.DATA + len(self._data)
        self._data += struct.pack(f"<{len(table)}q", *table)
        return elf.LAUNCH.pack(code, place, *grid, 0, 0, grid[0] * grid[1] * grid[2])


def _outputs(call: _Call, data: bytes) -> Arrays:
    arrays = []
    for spec, shape, offset in zip(call.plan.outputs, call.shapes, call.outputs, strict=True):
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(data, spec.dtype.numpy, count, offset).reshape(shape).copy())
    return arrays
