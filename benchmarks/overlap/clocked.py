"""A compiled model in the runtime, on devices that take the time of a chip's profile and compute nothing.

    python -m benchmarks.overlap.clocked FILE --profile snapdragon-8-gen-3 --requests 16 --in-flight 16

Plan, queues, semaphores and requests in flight are the real ones; a dispatch sleeps for as long as the cost
model gives it on the chip, times ``--slower``, so that what the host needs for the runtime is the smaller
part. Printed beside it is the prediction of ``mansard simulate --requests``, in which handoffs take the
chip's time; here they take the host's. The bound is that of `benchmarks.overlap`: the busiest device's work,
or one request's critical path. Answers mean nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.harness.paths import import_from
from benchmarks.overlap.case import PLUGIN, Result, go_first, measure, result_of
from mansard.api import Model
from mansard.artifact.resources import Resources, read_artifact
from mansard.dims import evaluate
from mansard.hal import Command, DeviceInfo, DispatchCommand, Executable, ExecutableSpec
from mansard.hal.threaded import Bytes, ThreadedDevice
from mansard.placement.plan_workload import replay
from mansard.placement.simulate_requests import SimulatedRequests, simulate_requests
from mansard.plan.plan import DeviceProgram, Plan
from mansard.runtime.profiling.intervals import Span, intersection, total_length
from mansard.targets.socs import Soc, load_soc

SLOWER = 50.0


class _Executable(Executable):
    def __init__(self, spec: ExecutableSpec) -> None:
        self.spec = spec
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})

    def close(self) -> None:
        """Nothing was loaded."""


class ClockedDevice(ThreadedDevice):
    """Stands in for a slot of a plan: a dispatch takes ``seconds`` by its label, times ``slower``."""

    def __init__(self, slot: DeviceProgram, seconds: Mapping[str, float], slower: float = 1.0) -> None:
        import_from(PLUGIN)
        from mansard_npu.clock import Clock

        self.seconds, self.clock = seconds, Clock(1 / slower)
        formats = tuple(dict.fromkeys(ref.format for ref in slot.executables))
        super().__init__(
            DeviceInfo(slot.driver, 0, f"{slot.name}, clocked", slot.target, kind="simulated"),
            formats=formats or ("none",),
        )

    def load(self, spec: ExecutableSpec) -> Executable:
        """Anything that is in the plan."""
        return _Executable(spec)

    def run(self, command: DispatchCommand, memories: Sequence[Bytes]) -> None:
        """Compute nothing."""

    def pace(self, command: Command, crosses: bool, start: float) -> None:
        """Wait until the dispatch's time is up; copies within shared memory take none."""
        if isinstance(command, DispatchCommand):
            self.clock.spend(start, self.seconds[command.label])


@dataclass(frozen=True)
class Clocked:
    """A model replayed on a chip: as predicted, and in the runtime with times that are ``slower`` times as
    long."""

    chip: str
    predicted: SimulatedRequests
    measured: Result
    slower: float


def clocked(
    plan: Plan,
    resources: Resources,
    soc: Soc,
    *,
    requests: int,
    in_flight: int,
    slower: float = SLOWER,
    runs: int = 3,
) -> Clocked:
    """Replay a plan without dims and states on a chip that has a table for each of its devices."""
    tables = [soc.device(slot.name, slot.driver) for slot in plan.devices]
    replayed = replay(plan, [soc.devices[table] for table in tables], {})
    problem, labels = replayed.problem, replayed.labels
    go_first()  # threads of devices that start after it, too
    devices: dict[str, Any] = {}
    for number, slot in enumerate(plan.devices):
        own = [n for n, label in enumerate(labels) if label == number]
        seconds = {plan.decisions[n].dispatch: problem.times[n][number] for n in own}
        if len(seconds) < len(own):
            raise SystemExit(
                f"dispatches of {slot.name} have the same name: their times cannot be told apart"
            )
        devices[slot.name] = ClockedDevice(slot, seconds, slower)
    predicted = simulate_requests(problem, labels, requests, in_flight)
    inputs = [
        np.zeros([evaluate(extent, {}) for extent in spec.shape], spec.dtype.numpy) for spec in plan.inputs
    ]
    try:
        with Model(plan, resources, devices, max_in_flight=in_flight) as model:
            profiles = measure(model, inputs, requests, in_flight, runs)
    finally:
        for device in devices.values():
            device.close()
    late = sum(device.clock.overruns().overruns for device in devices.values())
    bound = 1e3 * slower * predicted.bound
    from_model = f"the profile of {soc.name}, times {slower:g}"
    return Clocked(
        soc.name, predicted, result_of("clocked", profiles, bound, from_model, overrun=late), slower
    )


def data(result: Clocked) -> dict[str, Any]:
    """The figures; of the measured run in the chip's time."""
    measured, predicted = result.measured, result.predicted
    return {
        "chip": result.chip,
        "requests": measured.requests,
        "in_flight": measured.in_flight,
        "slower": result.slower,
        "bound_ms": 1e3 * predicted.bound,
        "predicted_ms": 1e3 * predicted.seconds,
        "predicted_efficiency": predicted.efficiency,
        "predicted_busy": {
            name: seconds / predicted.seconds
            for name, seconds in zip(measured.busy, predicted.busy, strict=True)
        },
        "predicted_all_busy_ms": _all_busy_ms(predicted),
        "measured_ms": measured.measured_ms / result.slower,
        "efficiency": measured.efficiency,
        "lockstep_ms": measured.lockstep_ms / result.slower,
        "speedup": measured.speedup,
        "busy": dict(measured.busy),
        "all_busy_ms": measured.all_busy_ms / result.slower,
        "overruns": measured.overruns,
    }


def _all_busy_ms(run: SimulatedRequests) -> float:
    """How long all devices with work have some at once."""
    spans: dict[int, list[Span]] = {}
    for span in run.spans:
        spans.setdefault(span.device, []).append((round(1e9 * span.start), round(1e9 * span.end)))
    return total_length(intersection(list(spans.values()))) / 1e6


def line(row: Mapping[str, Any]) -> str:
    """The figures for people."""
    busy = ", ".join(f"{name} {100 * part:.0f} %" for name, part in row["busy"].items())
    return "\n".join(
        (
            f"{row['chip']}, {row['requests']} requests, {row['in_flight']} in flight: "
            f"bound {row['bound_ms']:.2f} ms",
            f"predicted       {row['predicted_ms']:.2f} ms, efficiency {row['predicted_efficiency']:.3f}",
            f"in the runtime  {row['measured_ms']:.2f} ms, efficiency {row['efficiency']:.3f}"
            + (f" ({row['overruns']} overruns of the host)" if row["overruns"] else ""),
            f"lockstep        {row['lockstep_ms']:.2f} ms",
            f"busy {busy}; all at once for {row['all_busy_ms']:.2f} ms",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a model, as mansard compile writes it")
    parser.add_argument("--profile", default="snapdragon-8-gen-3", metavar="CHIP")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--slower", type=float, default=SLOWER)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    plan, resources = read_artifact(options.file, verify="code")
    result = clocked(
        plan,
        resources,
        load_soc(options.profile),
        requests=options.requests,
        in_flight=options.in_flight,
        slower=options.slower,
        runs=options.runs,
    )
    row = data(result)
    print(json.dumps(row, indent=1) if options.json else line(row))


if __name__ == "__main__":
    main()
