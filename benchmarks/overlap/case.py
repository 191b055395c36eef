"""What cases of `benchmarks.overlap` have in common: simulated devices, timed models, a case's result."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.paths import EXAMPLES, import_from
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.ir import Graph
from mansard.placement import PlacementOptions
from mansard.plan.plan import DispatchStep, Plan, TransferStep
from mansard.runtime.profiling.profile import Profile

PLUGIN = EXAMPLES / "npu_plugin"


@dataclass(frozen=True)
class Result:
    """A case as measured; times in milliseconds, for all requests together.

    ``bound_ms``: the best possible, by ``bound_from``. ``lockstep_ms``: the same plan with one batch of all
    devices together at a time. ``busy``: the part of ``measured_ms`` during which each device worked,
    ``all_busy_ms`` the time during which all of them did.
    """

    case: str
    devices: tuple[str, ...]
    requests: int
    in_flight: int
    dispatch_ms: float | None
    """How long a dispatch takes; None where they differ."""
    bound_ms: float
    bound_from: str
    measured_ms: float
    lockstep_ms: float
    busy: Mapping[str, float]
    all_busy_ms: float
    copies: int
    copied_bytes: int
    goal: float | None = None
    """The least efficiency there should be."""
    overruns: int = 0
    """Commands for which the host took longer than the simulated device: figures are the host's then."""
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def efficiency(self) -> float:
        """Overlap efficiency."""
        return self.bound_ms / self.measured_ms

    @property
    def speedup(self) -> float:
        """How much longer lockstep takes."""
        return self.lockstep_ms / self.measured_ms


# Simulated devices ----------------------------------------------------------------------------------


def simulate_npus(call_ms: Sequence[float], *, unified: bool = True, link: float = 1e18) -> list[str]:
    """Make the plug-in's simulated NPUs known to this process, one for each time that a call takes there,
    whatever it computes; returns their names. Copies cost nothing unless ``link`` (bytes/s) says what:
    what is measured is the runtime.

    To be called before anything else asks for devices.
    """
    figures = (
        f'name = "simulated NPU"\nmemory = {1 << 31}\nunified = {str(unified).lower()}\n'
        f"instances = {len(call_ms)}\nbandwidth = 1e18\nlink = {link}\nlaunch = 0.0\nhandoff = 0.0\n"
        "vector = 1e18\nrates = {i8 = 1e18, bf16 = 1e18}\n"
    )
    figures += "".join(f"[instance.{n}]\nlaunch = {ms / 1e3}\n" for n, ms in enumerate(call_ms))
    folder = register_npus()
    (folder / "npus.toml").write_text(figures)
    os.environ["MANSARD_NPU_MODEL"] = str(folder / "npus.toml")
    return ["npu" if number == 0 else f"npu:{number}" for number in range(len(call_ms))]


def register_npus() -> Path:
    """Make the plug-in known to this process as if it were installed; returns a folder for its files."""
    folder = Path(tempfile.mkdtemp(prefix="mansard-overlap-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    info = folder / "mansard_npu-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mansard-npu\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[mansard.drivers]\nnpu = mansard_npu.driver:DRIVER\n"
        "[mansard.targets]\nnpu = mansard_npu.compiler:BACKEND\n"
    )
    import_from(folder, PLUGIN)
    return folder


def go_first() -> str:
    """Let this process run before others, if that is allowed; returns how it runs.

    Simulated devices sleep most of the time: what they measure is not to be how long a busy machine lets them
    sleep on. Not for work that keeps cores busy. They also share one interpreter, in which a device that has
    work would wait for another that computes; from here on threads take turns every 20 us, not every 5 ms.
    """
    sys.setswitchinterval(20e-6)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return "before others"
    return "as others"


def device_ms(model: Model) -> dict[str, float]:
    """Milliseconds that the performance models of simulated NPUs give each of them for one request."""
    from mansard_npu.device import NpuDevice

    times: dict[str, float] = {}
    for slot in model.bind().slots:
        device = slot.device
        if not isinstance(device, NpuDevice):
            continue
        seconds = 0.0
        for step in (step for segment in slot.plan.segments for step in segment.steps):
            if isinstance(step, TransferStep) and not device.model.unified:
                seconds += device.model.copy_seconds(int(step.bytes), crosses=True)
            if isinstance(step, DispatchStep):
                call = slot.executables[step.executable].call  # type: ignore[attr-defined]
                products, operations, moved = (float(p) for p in step.params[:3])  # type: ignore[arg-type]
                seconds += device.model.call_seconds(call["dtype"], products, operations - products, moved)
        times[slot.plan.name] = 1e3 * seconds / device.clock.speed
    return times


def overruns(model: Model) -> int:
    """Commands of the model's simulated NPUs that the host made late."""
    counters = [getattr(slot.device, "overruns", None) for slot in model.bind().slots]
    return sum(count().overruns for count in counters if count is not None)


# Measuring ------------------------------------------------------------------------------------------


def compiled(
    graph: Graph, devices: Sequence[str], placement: PlacementOptions, in_flight: int, precision: str = "f32"
) -> Model:
    """A graph compiled for devices, taking so many requests at a time."""
    options = CompileOptions(targets=tuple(devices), placement=placement, precision=precision)
    artifact = compile_graph(graph, options)
    resources = MemoryResources(artifact.executables, artifact.weights)
    return Model(artifact.plan, resources, max_in_flight=in_flight)


def measure(
    model: Model, inputs: Sequence[object], requests: int, in_flight: int, runs: int
) -> tuple[Profile, Profile]:
    """The shortest of some runs, and of as many in lockstep, taken in turn."""
    best: list[Profile | None] = [None, None]
    for which in itertools.chain.from_iterable(itertools.repeat((0, 1), runs)):
        lockstep = which == 1
        profile = model.profile(*inputs, requests=requests, in_flight=in_flight, lockstep=lockstep)
        before = best[which]
        if before is None or profile.latency_ms < before.latency_ms:
            best[which] = profile
    one, lockstep_one = best
    assert one is not None and lockstep_one is not None
    return one, lockstep_one


def result_of(
    case: str,
    profiles: tuple[Profile, Profile],
    bound_ms: float,
    bound_from: str,
    *,
    dispatch_ms: float | None = None,
    goal: float | None = None,
    overrun: int = 0,
    **notes: Any,
) -> Result:
    """The result of `measure` beside a bound."""
    one, lockstep = profiles
    return Result(
        case,
        tuple(part.device for part in one.parts),
        one.requests,
        one.in_flight,
        dispatch_ms,
        bound_ms,
        bound_from,
        one.latency_ms,
        lockstep.latency_ms,
        {part.slot: part.busy_ms / one.latency_ms for part in one.parts},
        one.all_busy_ms,
        one.copies.device + one.copies.host,
        one.copies.device_bytes + one.copies.host_bytes,
        goal,
        overrun,
        notes,
    )


def check(actual: object, expected: Sequence[np.ndarray[Any, Any]], tolerance: float) -> None:
    """Raise AssertionError unless outputs are those expected, up to a part of the largest."""
    outputs = actual if isinstance(actual, tuple) else (actual,)
    for output, right in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(output, np.float32), right, rtol=0, atol=tolerance * float(np.abs(right).max())
        )


def placed(plan: Plan) -> Iterator[tuple[str, str]]:
    """The dispatches of a plan with their devices."""
    for decision in plan.decisions:
        yield decision.dispatch, decision.device
