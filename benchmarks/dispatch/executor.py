"""What the CPU executor costs beyond its kernels; with --device vulkan, what the Vulkan HAL does.

    python -m benchmarks.dispatch.executor [--device cpu] [--threads N] [--seconds 0.3] [--json FILE]

For a Vulkan device see vulkan.py beside it; the rest is about the CPU.

Everything is measured at the HAL: a recorded command buffer, one submission, one wait, by one thread.

`empty`    submit and wait for a batch without commands: mostly Python. `launched` is the same through a
           launcher, as models of one recording are run.
`nothing`  lists of 1, 60 and 1000 dispatches of 64 workgroups that return at once, with a barrier after
           each and without; `per_dispatch_us` is the time beyond the empty batch over their number.
`work`     lists of 60 dispatches with barriers, of some 1 to 100 us of work each; `kernel_us` is the time of
           one on one thread, `beyond_kernel_us` that on all threads less `kernel_us` over their number.
`idle`     CPU time the process takes in the 100 ms after a call.

Times are microseconds: the least of all repetitions (`min`), and the `median`. On a machine that does
something else too only `min` means much, and the runs with several threads need moments in which the CPUs are
free (as root: `chrt -f 10 python -m benchmarks.dispatch.executor` takes them).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mansard.codegen.llvm.link import link
from mansard.drivers.cpu.device import CpuDevice
from mansard.drivers.cpu.driver import DRIVER
from mansard.hal import (
    BarrierCommand,
    BufferRef,
    Command,
    DispatchCommand,
    EntryPoint,
    Executable,
    ExecutableSpec,
    Point,
    Semaphore,
    Submission,
)

WORKGROUPS = 64

# nothing: returns. spin: each workgroup runs a dependent chain of table[1] multiplications.
KERNELS = """
define void @nothing(ptr %table, ptr %grid, i64 %begin, i64 %end) {
  ret void
}
define void @spin(ptr %table, ptr %grid, i64 %begin, i64 %end) {
entry:
  %p0 = getelementptr i64, ptr %table, i64 0
  %address = load i64, ptr %p0
  %p1 = getelementptr i64, ptr %table, i64 1
  %turns = load i64, ptr %p1
  %out = inttoptr i64 %address to ptr
  br label %groups
groups:
  %g = phi i64 [ %begin, %entry ], [ %g_next, %store ]
  %more = icmp slt i64 %g, %end
  br i1 %more, label %head, label %done
head:
  %i = phi i64 [ 0, %groups ], [ %i_next, %turn ]
  %state = phi i32 [ 0, %groups ], [ %state_next, %turn ]
  %again = icmp slt i64 %i, %turns
  br i1 %again, label %turn, label %store
turn:
  %product = mul i32 %state, 1664525
  %state_next = add i32 %product, 1013904223
  %i_next = add i64 %i, 1
  br label %head
store:
  %at = getelementptr i32, ptr %out, i64 %g
  store i32 %state, ptr %at
  %g_next = add i64 %g, 1
  br label %groups
done:
  ret void
}
"""


class Bench:
    """A device with the kernels loaded, and the timeline its runs signal."""

    def __init__(self, threads: int | None, seconds: float) -> None:
        self.device: CpuDevice = DRIVER.open(DRIVER.devices()[0], threads=threads)
        self.seconds = seconds
        image = link(_compile(KERNELS))
        entries = (
            EntryPoint("nothing", 0, 0, offset=image.functions["nothing"]),
            EntryPoint("spin", 1, 1, offset=image.functions["spin"]),
        )
        target = f"cpu:{platform.machine()}"
        self.code: Executable = self.device.load(ExecutableSpec("cpu-image", target, image.code, entries))
        self.out = self.device.allocate(4 * WORKGROUPS)
        self.timeline, self.value = Semaphore("bench"), 0

    def nothing(self) -> DispatchCommand:
        return DispatchCommand(self.code, "nothing", (), (), (WORKGROUPS, 1, 1))

    def spin(self, steps: int) -> DispatchCommand:
        return DispatchCommand(self.code, "spin", (BufferRef(self.out),), (steps,), (WORKGROUPS, 1, 1))

    def runner(self, commands: Sequence[Command]) -> Callable[[], None]:
        """Submits the commands and waits for them."""
        recorded = self.device.record(commands)

        def run() -> None:
            self.value += 1
            point = Point(self.timeline, self.value)
            self.device.submit([Submission(recorded, signal=(point,))])
            point.wait()

        return run

    def launcher(self) -> Callable[[], None]:
        """Submits no commands the quick way and waits."""
        recorded = self.device.record([])
        launcher = self.device.launcher(recorded, self.timeline)

        def run() -> None:
            self.value += 1
            launcher.submit(self.value, ())
            Point(self.timeline, self.value).wait()

        return run

    def times(self, commands: Sequence[Command]) -> dict[str, float]:
        """Microseconds of a submission and a wait."""
        return self.repeat(self.runner(commands))

    def repeat(self, run: Callable[[], None]) -> dict[str, float]:
        """Microseconds of a run, over as many runs as fit into the time given."""
        for _ in range(20):
            run()
        taken: list[float] = []
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until or len(taken) < 20:
            begin = time.perf_counter_ns()
            run()
            taken.append((time.perf_counter_ns() - begin) / 1e3)
        return {"min": round(min(taken), 2), "median": round(statistics.median(taken), 2)}

    def idle_ms(self) -> float:
        """CPU milliseconds of the process in the 100 ms after a call; the median of 10."""
        run = self.runner([self.spin(1000), BarrierCommand(), self.spin(1000)])
        burnt = []
        for _ in range(10):
            run()
            begin = time.process_time_ns()
            time.sleep(0.1)
            burnt.append((time.process_time_ns() - begin) / 1e6)
        return round(statistics.median(burnt), 3)


def _compile(text: str) -> bytes:
    from mansard.codegen.llvm import module, target

    return module.compile_object(text, target.parse("cpu"))


def listed(dispatch: DispatchCommand, count: int, barriers: bool) -> list[Command]:
    """``count`` times the dispatch, independent or one after another."""
    return [
        command
        for _ in range(count)
        for command in ((dispatch, BarrierCommand()) if barriers else (dispatch,))
    ]


def measure(threads: int | None, seconds: float) -> dict[str, Any]:
    bench, alone = Bench(threads, seconds), Bench(1, seconds)
    count = bench.device.threads
    empty = bench.times([])
    launched = bench.repeat(bench.launcher())
    result: dict[str, Any] = {
        "threads": count,
        "empty": empty,
        "launched": launched,
        "nothing": [],
        "work": [],
    }
    for number in (1, 60, 1000):
        for barriers in (True, False):
            times = bench.times(listed(bench.nothing(), number, barriers))
            beyond = {k: round((times[k] - empty[k]) / number, 4) for k in times}
            row = {"dispatches": number, "barriers": barriers, "run_us": times, "per_dispatch_us": beyond}
            result["nothing"].append(row)
    turns_per_us = _turns_per_us(alone)
    for microseconds in (2, 5, 20, 100):
        result["work"].append(_work(bench, alone, round(microseconds * turns_per_us / WORKGROUPS)))
    result["idle_cpu_ms_in_100_ms"] = bench.idle_ms()
    bench.device.close()
    alone.device.close()
    return result


def _work(bench: Bench, alone: Bench, steps: int) -> dict[str, Any]:
    number, threads = 60, bench.device.threads
    both: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for _ in range(3):  # in turn, so that both see the same machine
        for rows, which in zip(both, (bench, alone), strict=True):
            rows.append(which.times(listed(which.spin(steps), number, True)))
    ours, one = ({k: min(times[k] for times in rows) for k in ("min", "median")} for rows in both)
    return {
        "kernel_us": round(one["min"] / number, 3),
        "dispatch_us": {k: round(v / number, 3) for k, v in ours.items()},
        "beyond_kernel_us": {k: round((ours[k] - one[k] / threads) / number, 3) for k in ours},
        "speedup": round(one["min"] / ours["min"], 3),
    }


def _turns_per_us(bench: Bench) -> float:
    steps = 20_000
    return steps * WORKGROUPS / bench.times([bench.spin(steps)])["min"]


def _measure_device(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.device == "cpu":
        return measure(arguments.threads, arguments.seconds)
    from benchmarks.dispatch import vulkan as dispatch_vulkan

    return dispatch_vulkan.measure(arguments.device, arguments.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu, or the name of a Vulkan device")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each measurement")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    info = DRIVER.devices()[0]
    report = {
        "machine": {
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "cpu": info.name,
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        **_measure_device(arguments),
    }
    text = json.dumps(report, indent=1)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
