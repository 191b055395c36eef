"""What the Vulkan HAL costs the host beside its kernels (`benchmarks.dispatch.executor --device vulkan`).

`record`  microseconds per dispatch to record 5000 dispatches of two buffers and two parameters, with a
          barrier after each.
`replay`  a recording of 1, 60 and 5000 dispatches, submitted again: `submit_us` is the time of the call that
          hands it over, `per_dispatch_us` that over the number of dispatches; `run_us` is up to the end of
          the wait for its completion, `device_us` the device's own time from the first dispatch to the last
          of a recording that profiles, with timestamps on both sides of each.
`long`    one dispatch whose work takes longer and longer: `submit_us` stays, `run_us` grows. Each follows a
          few short runs; `rested_submit_us` is that of a host that has slept through the long run before.
`copy`    copies of 64 MB from and to host memory on each queue.
`queues`  an upload, an empty kernel and a download, on one queue or with the copies on the transfer queue;
          a long kernel and a large upload, one after another or on two queues.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from mansard.drivers.vulkan.shaders.assembler import assemble
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
    MemoryKind,
    Point,
    QueueKind,
    Semaphore,
    Submission,
)
from mansard.hal.registry import open_device

SPIN = EntryPoint("spin", bindings=2, params=2, workgroup=(64, 1, 1))
# One workgroup of which every invocation runs a dependent chain of `param 0` multiplications.
TEXT = f"""
OpCapability Shader
OpCapability Int64
OpCapability PhysicalStorageBufferAddresses
OpMemoryModel PhysicalStorageBuffer64 GLSL450
OpEntryPoint GLCompute %main "{SPIN.name}" %gid %table
OpExecutionMode %main LocalSize 64 1 1
OpDecorate %gid BuiltIn GlobalInvocationId
OpDecorate %words ArrayStride 8
OpDecorate %block Block
OpMemberDecorate %block 0 Offset 0
%void = OpTypeVoid
%bool = OpTypeBool
%uint = OpTypeInt 32 0
%ulong = OpTypeInt 64 0
%uvec3 = OpTypeVector %uint 3
%u0 = OpConstant %uint 0
%u1 = OpConstant %uint 1
%u2 = OpConstant %uint 2
%u4 = OpConstant %uint 4
%four = OpConstant %ulong 4 0
%factor = OpConstant %uint 1664525
%step = OpConstant %uint 1013904223
%words = OpTypeArray %ulong %u4
%block = OpTypeStruct %words
%p_block = OpTypePointer PushConstant %block
%p_word = OpTypePointer PushConstant %ulong
%p_uvec3 = OpTypePointer Input %uvec3
%p_uint = OpTypePointer PhysicalStorageBuffer %uint
%gid = OpVariable %p_uvec3 Input
%table = OpVariable %p_block PushConstant
%signature = OpTypeFunction %void
%main = OpFunction %void None %signature
%begin = OpLabel
%gid3 = OpLoad %uvec3 %gid
%x = OpCompositeExtract %uint %gid3 0
%p_target = OpAccessChain %p_word %table %u0 %u1
%target = OpLoad %ulong %p_target
%p_turns = OpAccessChain %p_word %table %u0 %u2
%wide_turns = OpLoad %ulong %p_turns
%turns = OpUConvert %uint %wide_turns
OpBranch %head
%head = OpLabel
%i = OpPhi %uint %u0 %begin %next %turn
%state = OpPhi %uint %x %begin %sum %turn
OpLoopMerge %done %turn None
OpBranch %check
%check = OpLabel
%more = OpULessThan %bool %i %turns
OpBranchConditional %more %turn %done
%turn = OpLabel
%product = OpIMul %uint %state %factor
%sum = OpIAdd %uint %product %step
%next = OpIAdd %uint %i %u1
OpBranch %head
%done = OpLabel
%wide = OpUConvert %ulong %x
%bytes = OpIMul %ulong %wide %four
%address = OpIAdd %ulong %target %bytes
%p = OpConvertUToPtr %p_uint %address
OpStore %p %state Aligned 4
OpReturn
OpFunctionEnd
"""

RUNS_BEFORE = 20
"""Short runs before a submission whose time is taken, so that the processor is awake and its caches warm."""


class Bench:
    """A device with the kernel loaded."""

    def __init__(self, name: str, seconds: float) -> None:
        self.device: Device = open_device(name)
        self.seconds = seconds
        self.code: Executable = self.device.load(
            ExecutableSpec("spirv", "vulkan:1.3", assemble(TEXT), (SPIN,))
        )
        self.buffers = [self.device.allocate(4096) for _ in range(2)]
        self.timeline, self.value = Semaphore("bench"), 0

    def spin(self, steps: int) -> DispatchCommand:
        refs = (BufferRef(self.buffers[0]), BufferRef(self.buffers[1]))
        return DispatchCommand(self.code, "spin", refs, (steps, -1), (1, 1, 1))

    def times(self, recorded: CommandBuffer, before: CommandBuffer | None = None) -> dict[str, float]:
        """Microseconds of a submission alone, and with the wait: least and median of all runs.

        With ``before``, that is run a few times first: the host has then not slept through a long run.
        """
        submits: list[float] = []
        runs: list[float] = []
        until = time.perf_counter() + self.seconds
        while len(runs) < 20 or time.perf_counter() < until:
            self.value += 1
            point = Point(self.timeline, self.value)
            batch = Submission(recorded, signal=(point,))
            if before is not None:
                for _ in range(RUNS_BEFORE):
                    self._run(before)
            _stay_awake()
            begin = time.perf_counter_ns()
            self.device.submit([batch])
            handed = time.perf_counter_ns()
            point.wait()
            submits.append((handed - begin) / 1e3)
            runs.append((time.perf_counter_ns() - begin) / 1e3)
        return {
            "submit_us": round(min(submits), 2),
            "submit_median_us": round(statistics.median(submits), 2),
            "run_us": round(min(runs), 2),
        }

    def _run(self, recorded: CommandBuffer) -> None:
        point = Point(Semaphore("bench"), 1)
        self.device.submit([Submission(recorded, signal=(point,))])
        point.wait()

    def chained(self, recorded: Sequence[CommandBuffer]) -> float:
        """Microseconds of recordings that follow one another, submitted in one call."""
        return self._least_run(recorded, chained=True)

    def concurrently(self, recorded: Sequence[CommandBuffer]) -> float:
        """Microseconds of recordings that need not wait for each other."""
        return self._least_run(recorded, chained=False)

    def _least_run(self, recorded: Sequence[CommandBuffer], *, chained: bool) -> float:
        runs: list[float] = []
        until = time.perf_counter() + self.seconds
        while len(runs) < 10 or time.perf_counter() < until:
            points = [Point(Semaphore("bench"), 1) for _ in recorded]
            waits = [(), *((point,) for point in points[:-1])] if chained else [() for _ in points]
            submissions = [
                Submission(commands, wait, (point,))
                for commands, wait, point in zip(recorded, waits, points, strict=True)
            ]
            begin = time.perf_counter_ns()
            self.device.submit(submissions)
            for point in points:
                point.wait()
            runs.append((time.perf_counter_ns() - begin) / 1e3)
        return round(min(runs), 2)

    def device_us(self, commands: Sequence[Command]) -> float:
        """The device's time from the begin of the first command to the end of the last."""
        recorded = self.device.record(commands, profile=True)
        self.times(recorded)
        rows = recorded.profile()
        return round((rows[-1].end_ns - rows[0].start_ns) / 1e3, 1) if rows else float("nan")


def _stay_awake() -> None:
    """Keep the processor busy for a moment: one that slept during a long wait is slow at first."""
    until = time.perf_counter() + 2e-4
    while time.perf_counter() < until:
        pass


def listed(dispatch: DispatchCommand, count: int, barriers: bool) -> list[Command]:
    """``count`` times the dispatch, independent or one after another."""
    return [c for _ in range(count) for c in ((dispatch, BarrierCommand()) if barriers else (dispatch,))]


def measure(name: str, seconds: float) -> dict[str, Any]:
    """All figures of one device."""
    bench = Bench(name, seconds)
    bench.times(bench.device.record([bench.spin(50_000)]))  # clocks rise with work
    commands = listed(bench.spin(0), 5000, True)
    result: dict[str, Any] = {
        "device": bench.device.info.name,
        "driver": bench.device.info.driver_version,
        "record_us_per_dispatch": _least(lambda: bench.device.record(commands).close(), 5) / 5000,
        "replay": [],
        "long": [],
        "copy": [],
    }
    for number in (1, 60, 5000):
        for barriers in (True, False):
            commands = listed(bench.spin(0), number, barriers)
            times = bench.times(bench.device.record(commands))
            times["device_us"] = bench.device_us(commands)
            row = {"dispatches": number, "barriers": barriers, **times}
            row["per_dispatch_us"] = round(times["submit_us"] / number, 4)
            row["run_per_dispatch_us"] = round(times["run_us"] / number, 4)
            result["replay"].append(row)
    software = bench.device.info.kind == "software"
    steps = 200 if software else 1000
    short = bench.device.record([bench.spin(steps)])
    for _ in range(5):
        recorded = bench.device.record([bench.spin(steps)])
        rested, times = bench.times(recorded), bench.times(recorded, short)
        rest = {f"rested_{name}": us for name, us in rested.items() if name.startswith("submit")}
        result["long"].append({"turns": steps, **times, **rest})
        steps *= 4 if software else 10
    for direction in ("upload", "download"):
        result["copy"].append({"direction": direction, **_copy_rates(bench, direction)})
    result["queues"] = _queues(bench)
    return result


def _copy_rates(bench: Bench, direction: str) -> dict[str, float]:
    """GB/s of a copy of 64 MB, by queue."""
    size = 64 << 20
    host = bench.device.allocate(size, MemoryKind.SHARED)
    local = bench.device.allocate(size)
    source, target = (host, local) if direction == "upload" else (local, host)
    rates = {}
    for queue in QueueKind:
        recorded = bench.device.record([CopyCommand(BufferRef(source), BufferRef(target), size)], queue=queue)
        rates[f"{queue.value}_queue_GB_s"] = round(size / bench.times(recorded)["run_us"] / 1e3, 2)
    return rates


def _queues(bench: Bench) -> dict[str, float]:
    """Microseconds of a small upload, kernel and download on one queue and over two; and of a long kernel
    with a large upload beside it, against each alone."""
    size = 64 << 20
    host = bench.device.allocate(size, MemoryKind.SHARED)
    local = bench.device.allocate(size)
    times: dict[str, float] = {}
    for name, count in (("4KB", 4096), ("1MB", 1 << 20), ("16MB", 16 << 20)):
        up = CopyCommand(BufferRef(host), BufferRef(local), count)
        down = CopyCommand(BufferRef(local), BufferRef(host), count)
        one = bench.device.record([up, BarrierCommand(), bench.spin(0), BarrierCommand(), down])
        times[f"chain_{name}_one_queue_us"] = bench.times(one)["run_us"]
        chain = [
            bench.device.record([up], queue=QueueKind.TRANSFER),
            bench.device.record([bench.spin(0)]),
            bench.device.record([down], queue=QueueKind.TRANSFER),
        ]
        times[f"chain_{name}_two_queues_us"] = bench.chained(chain)
    steps = 300_000 if bench.device.info.kind != "software" else 50_000
    kernel = bench.device.record([bench.spin(steps)])
    upload = CopyCommand(BufferRef(host), BufferRef(local), size)
    upload_alone = bench.device.record([upload], queue=QueueKind.TRANSFER)
    after = bench.device.record([bench.spin(steps), upload])
    times["kernel_us"] = bench.times(kernel)["run_us"]
    times["upload_us"] = bench.times(upload_alone)["run_us"]
    times["both_one_queue_us"] = bench.times(after)["run_us"]
    times["both_two_queues_us"] = bench.concurrently([kernel, upload_alone])
    return times


def _least(call: Callable[[], None], times: int) -> float:
    """Microseconds of the quickest of several calls."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter_ns()
        call()
        taken.append((time.perf_counter_ns() - begin) / 1e3)
    return min(taken)
