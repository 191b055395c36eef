"""Products one after another: what lies between two of them, barriers or counters in memory.

    python -m benchmarks.dispatch.resident [--device vulkan] [--modules FOLDER] [--seconds 0.1]
        [--chains 0.6b,8b] [--json FILE]

The chains are the matrix-vector products of decoder layers: bf16 weights, each product's result being the
next one's vector. Forms:

- ``separate``: a dispatch for each product, and a pipeline barrier behind it;
- ``overlapped``: a dispatch for each product and no barriers: its workgroups wait for those of the dispatch
  before, which count themselves in memory. Devices have to begin dispatches in order;
- ``resident``: one dispatch of as many workgroups as the device holds at a time, which wait in the same way.

With ``ahead`` workgroups fetch their first weights before they wait. Times are microseconds of a submission
with its wait, the least of all; ``nothing`` is the same without the products: what launches and waits cost.
Results of all are compared.

The shader beside (resident/chain.comp) is compiled by glslangValidator (Debian: glslang-tools); ``--modules``
names a folder to keep what it gives, or to read that on a machine without it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.hal import (
    BarrierCommand,
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
    "0.6b": (28, [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (2048, 1024)]),
    "8b": (8, [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]),
}
"""Layers and the (outputs, inputs) of their products; of 0.6b the last stands for a cache of 1,024."""
CHUNK = 16 << 20
COUNTERS = 32
"""Numbers between two counters: each has a cache line."""
GRIDS = ((256, 264), (512, 132), (512, 264), (1024, 132))
"""Threads of a workgroup, and workgroups."""
DEPTHS = (1, 3)
"""Pieces of weights that an invocation has in flight."""
Variant = tuple[str, int, int, int]
"""Chain, threads, whether weights are fetched ahead, and pieces in flight."""


def module_path(folder: Path, variant: Variant, subgroup: int) -> Path:
    """Where a variant of the shader lies."""
    return folder / ("-".join(map(str, (*variant, subgroup))) + ".spv")


def build(folder: Path, variant: Variant, subgroup: int) -> Path:
    """A variant of the shader as SPIR-V."""
    path = module_path(folder, variant, subgroup)
    if path.exists():
        return path
    compiler = shutil.which("glslangValidator")
    if compiler is None:
        raise SystemExit("glslangValidator is not installed (Debian: glslang-tools)")
    folder.mkdir(parents=True, exist_ok=True)
    chain, threads, ahead, depth = variant
    shapes, before, stages = CHAINS[chain][1], 0, []
    for number, (n, k) in enumerate(shapes):
        stages.append(f"PRODUCT({number},{n},{k},{before})")
        before += n * k
    defines = {
        "THREADS": threads, "AHEAD": ahead, "DEPTH": depth, "SUBGROUP": subgroup, "LAYER": before,
        "COUNT": len(shapes), "STAGES": " ".join(stages), "LONGEST": max(k for _, k in shapes),
    }  # fmt: skip
    flags = [f"-D{name}={value}" for name, value in defines.items()]
    command = [compiler, "-V", "--target-env", "vulkan1.3", *flags, str(SHADER), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


class Chain:
    """The weights and vectors of a chain on a device."""

    def __init__(self, device: Device, name: str, seconds: float) -> None:
        self.device, self.seconds = device, seconds
        layers, shapes = CHAINS[name]
        self.host = device.allocate(CHUNK, MemoryKind.SHARED)
        longest = max(n for n, _ in shapes)
        self.vectors = [device.allocate(4 * longest) for _ in range(2)]
        self.products = [shape for _ in range(layers) for shape in shapes]
        self.counters = device.allocate(4 * COUNTERS * len(self.products))
        self.bytes = sum(2 * n * k for n, k in self.products)
        self.weights = device.allocate(-(-self.bytes // CHUNK) * CHUNK)
        generator = np.random.default_rng(0)
        signs = generator.integers(0, 2, CHUNK // 2) << 15
        numbers = signs | 0x3C80 | generator.integers(0, 128, CHUNK // 2)  # bf16 from 2**-6 to 2**-5
        self.host.view()[:] = numbers.astype(np.uint16).view(np.uint8)
        for at in range(0, self.bytes, CHUNK):
            self.run(device.record([CopyCommand(BufferRef(self.host), BufferRef(self.weights, at), CHUNK)]))
        self.start = generator.standard_normal(longest).astype(np.float32)

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
            commands += [self._dispatch(code, grid, number, 1, work, 0), BarrierCommand()]
        return self.device.record(commands)

    def overlapped(self, code: Executable, grid: int, work: int) -> CommandBuffer:
        """A dispatch for each product."""
        products = range(len(self.products))
        return self.device.record(
            [*self._reset(), *(self._dispatch(code, grid, n, 1, work, 1) for n in products)]
        )

    def resident(self, code: Executable, grid: int, work: int) -> CommandBuffer:
        """One dispatch."""
        dispatch = self._dispatch(code, grid, 0, len(self.products), work, 1)
        return self.device.record([*self._reset(), dispatch])

    def _reset(self) -> list[Command]:
        return [FillCommand(BufferRef(self.counters), self.counters.size, 0), BarrierCommand()]

    def _dispatch(
        self, code: Executable, grid: int, first: int, count: int, work: int, waits: int
    ) -> DispatchCommand:
        refs = tuple(BufferRef(b) for b in (self.counters, self.weights, *self.vectors))
        return DispatchCommand(code, "main", refs, (first, count, work, waits), (grid, 1, 1))


FORMS = {"separate": Chain.separate, "overlapped": Chain.overlapped, "resident": Chain.resident}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--modules", type=Path, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--chains", default=",".join(CHAINS))
    parser.add_argument(
        "--build", type=int, metavar="SUBGROUP", help="only compile the shader, for this size"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    folder = options.modules or Path(tempfile.mkdtemp(prefix="mansard-resident-"))
    variants = [
        (chain, threads, ahead, depth)
        for chain in options.chains.split(",")
        for threads in sorted({threads for threads, _ in GRIDS})
        for ahead in (0, 1)
        for depth in DEPTHS
    ]
    if options.build:
        for variant in variants:
            build(folder, variant, options.build)
        return
    device = open_device(options.device)
    subgroup = device.info.limits["max_subgroup_size"]
    rows: list[dict[str, Any]] = []
    for name in options.chains.split(","):
        chain, expected = Chain(device, name, options.seconds), None
        for (threads, grid), depth in itertools.product(GRIDS, DEPTHS):
            row: dict[str, Any] = {"chain": name, "products": len(chain.products), "mb": chain.bytes // 10**6}
            row |= {"threads": threads, "workgroups": grid, "depth": depth}
            for ahead in (0, 1):
                spirv = build(folder, (name, threads, ahead, depth), subgroup).read_bytes()
                entry = EntryPoint("main", 4, 4, (threads, 1, 1))
                code = device.load(ExecutableSpec("spirv", "vulkan:1.3", spirv, (entry,)))
                for form, record in FORMS.items():
                    if ahead and form == "separate":
                        continue
                    recorded = record(chain, code, grid, 1)
                    result = chain.result(recorded)
                    expected = result if expected is None else expected
                    key = f"{form}_ahead" if ahead else form
                    row[key] = chain.least(recorded) if np.array_equal(result, expected) else "does not fit"
                    if not ahead:
                        row[f"{key}_nothing"] = chain.least(record(chain, code, grid, 0))
            rows.append(row)
            print(row, flush=True)
    info = {"device": device.info.name, "driver": device.info.driver_version, "rows": rows}
    if options.json:
        options.json.write_text(json.dumps(info, indent=1) + "\n")


if __name__ == "__main__":
    main()
