"""Products one after another: a dispatch and a barrier for each, or one dispatch with barriers inside it.

    python -m benchmarks.dispatch.resident [--device vulkan] [--modules FOLDER] [--seconds 0.1] [--json FILE]

The chains are the matrix-vector products of decoder layers: bf16 weights, each product's result being the
next one's vector. ``resident`` runs a chain in one dispatch of as many workgroups as the device holds at a
time, which wait for each other at a counter in memory; ``ahead`` also fetches its first weights before it
waits. Times are microseconds of a submission with its wait, the least of all; ``nothing`` is the same
without the products: what launches and barriers cost. Results of all are compared.

The shader beside (resident/chain.comp) is compiled by glslangValidator (Debian: glslang-tools); ``--modules``
names a folder to keep what it gives, or to read that on a machine without it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.hal import (
    BarrierCommand,
    Buffer,
    BufferRef,
    Command,
    CommandBuffer,
    CopyCommand,
    Device,
    DispatchCommand,
    EntryPoint,
    Executable,
    ExecutableSpec,
    FillCommand,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
)
from mansard.hal.registry import open_device

SHADER = Path(__file__).with_name("resident") / "chain.comp"
CHAINS = {
    "0.6b": (28, [(4096, 1024), (2048, 1024), (1024, 2048), (6144, 1024), (1024, 3072)]),
    "8b": (8, [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]),
}
"""Layers and the (outputs, inputs) of their products; of 0.6b the second stands for a cache of 1,024."""
CHUNK = 16 << 20
LONGEST = 24576
GRIDS = ((256, 132), (256, 264), (256, 528), (512, 264), (1024, 132), (1024, 264))
"""Threads of a workgroup, and workgroups."""


def modules(folder: Path | None) -> Path:
    """A folder with every variant of the shader as SPIR-V."""
    target = folder or Path(tempfile.mkdtemp(prefix="mansard-resident-"))
    target.mkdir(parents=True, exist_ok=True)
    compiler = shutil.which("glslangValidator")
    for threads in sorted({threads for threads, _ in GRIDS}):
        for ahead in (0, 1):
            for vectors in {k // 4 for _, shapes in CHAINS.values() for k in [max(k for _, k in shapes)]}:
                path = target / f"{threads}-{ahead}-{vectors}.spv"
                if path.exists():
                    continue
                if compiler is None:
                    raise SystemExit("glslangValidator is not installed (Debian: glslang-tools)")
                defines = [f"-DTHREADS={threads}", f"-DAHEAD={ahead}", f"-DVECTORS={vectors}"]
                command = [
                    compiler,
                    "-V",
                    "--target-env",
                    "vulkan1.3",
                    *defines,
                    str(SHADER),
                    "-o",
                    str(path),
                ]
                subprocess.run(command, check=True, capture_output=True)
    return target


class Chain:
    """The weights and vectors of a chain on a device."""

    def __init__(
        self, device: Device, layers: int, shapes: Sequence[tuple[int, int]], seconds: float
    ) -> None:
        self.device, self.seconds = device, seconds
        self.host = device.allocate(CHUNK, MemoryKind.SHARED)
        self.counter = device.allocate(256)
        self.vectors = [device.allocate(4 * LONGEST) for _ in range(2)]
        self.products = [shape for _ in range(layers) for shape in shapes]
        self.bytes = sum(2 * n * k for n, k in self.products)
        self.weights = device.allocate(-(-self.bytes // CHUNK) * CHUNK)
        generator = np.random.default_rng(0)
        signs = generator.integers(0, 2, CHUNK // 2) << 15
        numbers = signs | 0x3C80 | generator.integers(0, 128, CHUNK // 2)  # bf16 from 2**-6 to 2**-5
        self.host.view()[:] = numbers.astype(np.uint16).view(np.uint8)
        for at in range(0, self.bytes, CHUNK):
            self.run(device.record([CopyCommand(BufferRef(self.host), BufferRef(self.weights, at), CHUNK)]))
        words, at = [], self.weights.address
        for number, (n, k) in enumerate(self.products):
            source, target = (self.vectors[(number + i) % 2].address for i in range(2))
            words += [at, source, target, n | k << 32]
            at += 2 * n * k
        self.program: Buffer = device.allocate(8 * len(words), MemoryKind.SHARED)
        self.program.view()[:] = np.array(words, np.uint64).view(np.uint8)
        self.start = generator.standard_normal(LONGEST).astype(np.float32)

    def run(self, recorded: CommandBuffer) -> float:
        """Microseconds of a submission with its wait."""
        point = Point(Semaphore("resident"), 1)
        begin = time.perf_counter_ns()
        self.device.submit([Submission(recorded, signal=(point,))])
        point.wait()
        return (time.perf_counter_ns() - begin) / 1e3

    def least(self, recorded: CommandBuffer) -> float:
        """The least of many runs."""
        times: list[float] = []
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until or len(times) < 5:
            times.append(self.run(recorded))
        return round(min(times), 1)

    def result(self, recorded: CommandBuffer) -> npt.NDArray[np.float32]:
        """What the last product gives, from the same first vector."""
        self.host.view()[: self.start.nbytes] = self.start.view(np.uint8)
        first = CopyCommand(BufferRef(self.host), BufferRef(self.vectors[0]), self.start.nbytes)
        empty = FillCommand(BufferRef(self.vectors[1]), self.vectors[1].size, 0)
        self.run(self.device.record([first, empty]))
        self.run(recorded)
        count = self.products[-1][0]
        last = BufferRef(self.vectors[len(self.products) % 2])
        self.run(self.device.record([CopyCommand(last, BufferRef(self.host), 4 * count)]))
        result: npt.NDArray[np.float32] = self.host.view()[: 4 * count].view(np.float32).copy()
        return result

    def separate(self, code: Executable, grid: int, work: int) -> CommandBuffer:
        """A dispatch and a barrier for each product."""
        commands: list[Command] = []
        for number in range(len(self.products)):
            commands += [self._dispatch(code, grid, number, 1, work), BarrierCommand()]
        return self.device.record(commands)

    def resident(self, code: Executable, grid: int, work: int) -> CommandBuffer:
        """One dispatch."""
        reset = FillCommand(BufferRef(self.counter), self.counter.size, 0)
        dispatch = self._dispatch(code, grid, 0, len(self.products), work)
        return self.device.record([reset, BarrierCommand(), dispatch])

    def _dispatch(self, code: Executable, grid: int, first: int, count: int, work: int) -> DispatchCommand:
        refs = (BufferRef(self.counter), BufferRef(self.program))
        return DispatchCommand(code, "main", refs, (first, count, work), (grid, 1, 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--modules", type=Path, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    folder = modules(options.modules)
    device = open_device(options.device)
    rows: list[dict[str, Any]] = []
    for name, (layers, shapes) in CHAINS.items():
        chain, expected = Chain(device, layers, shapes, options.seconds), None
        vectors = max(k for _, k in shapes) // 4

        def load(threads: int, ahead: int, vectors: int = vectors) -> Executable:
            code = (folder / f"{threads}-{ahead}-{vectors}.spv").read_bytes()
            entry = EntryPoint("main", 2, 3, (threads, 1, 1))
            return device.load(ExecutableSpec("spirv", "vulkan:1.3", code, (entry,)))

        for threads, grid in GRIDS:
            plain, ahead = load(threads, 0), load(threads, 1)
            row: dict[str, Any] = {"chain": name, "products": len(chain.products), "mb": chain.bytes // 10**6}
            row |= {"threads": threads, "workgroups": grid}
            for form, recorded, nothing in (
                ("separate", chain.separate(plain, grid, 1), chain.separate(plain, grid, 0)),
                ("resident", chain.resident(plain, grid, 1), chain.resident(plain, grid, 0)),
                ("ahead", chain.resident(ahead, grid, 1), None),
            ):
                result = chain.result(recorded)
                expected = result if expected is None else expected
                row[form] = chain.least(recorded) if np.array_equal(result, expected) else "does not fit"
                if nothing is not None:
                    row[f"{form}_nothing"] = chain.least(nothing)
            rows.append(row)
            print(row, flush=True)
    info = {"device": device.info.name, "driver": device.info.driver_version, "rows": rows}
    if options.json:
        options.json.write_text(json.dumps(info, indent=1) + "\n")


if __name__ == "__main__":
    main()
