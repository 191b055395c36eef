"""Tuning of a compiled model: the time is distributed over its kernels by their share of a call."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mansard.artifact.resources import Resources
from mansard.cache import Folder
from mansard.codegen.backend import Backend
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.compiler.kernels import KernelCompiler
from mansard.compiler.sources import KernelSource, sources_from_bytes
from mansard.compiler.targets import backend
from mansard.compiler.tuned import Tuned, TunedKernels, device_here
from mansard.dims import evaluate
from mansard.errors import ArtifactError, CompileError
from mansard.hal import Device, DeviceInfo
from mansard.hal.registry import open_device
from mansard.plan.plan import DispatchStep, Plan
from mansard.tuning.rebuild import with_parameters
from mansard.tuning.search import Search
from mansard.tuning.timing import KernelWorkload, Stopwatch, representative_sizes

Progress = Callable[[str, int, int], None]
"""Called with (kernel, seconds used, total seconds)."""


@dataclass(frozen=True)
class TunedKernel:
    """The result of tuning one kernel. Times are for one run, in microseconds; ``dispatches`` is the number
    of its runs in a call."""

    device: str
    kernel: str
    dispatches: int
    default_us: float
    best_us: float
    parameters: Parameters | None
    """The best parameters; None if the default is kept."""
    tried: int
    candidates: int


@dataclass(frozen=True)
class Tuning:
    """A tuned model and the results for its kernels, slowest first."""

    plan: Plan
    resources: Resources
    kernels: tuple[TunedKernel, ...]
    seconds: float

    @property
    def default_us(self) -> float:
        """The time of all dispatches of the tuned kernels with default parameters, in microseconds."""
        return sum(k.default_us * k.dispatches for k in self.kernels)

    @property
    def best_us(self) -> float:
        """The same with the best parameters."""
        return sum(k.best_us * k.dispatches for k in self.kernels)


@dataclass
class _Job:
    """A kernel in the search."""

    source: KernelSource
    search: Search
    stopwatch: Stopwatch
    runs: int
    default_ns: int = 0


def tune(
    plan: Plan,
    resources: Resources,
    budget: float,
    *,
    cache: bool = True,
    progress: Progress | None = None,
) -> Tuning:
    """Search the schedule parameters of a model's kernels for ``budget`` seconds, on this machine's devices.

    A kernel's part of the time is its share of a call. Results are cached by device and kernel: a later
    compilation uses them, and a later search continues from them. Slots of absent devices, or without tunable
    kernels, are unchanged.

    Raises ArtifactError for a model without the sources of its kernels, CompileError when no slot's
    target is this machine's.
    """
    begin = time.monotonic()
    if plan.methods:
        raise CompileError("a model with methods cannot be tuned")
    if plan.variants:
        raise CompileError("a model with variants cannot be tuned: compile it for one device, and tune that")
    data = resources.sources()
    if data is None:
        raise ArtifactError("the model does not contain the sources of its kernels: compile it again")
    sources = sources_from_bytes(data)
    used = sorted({source.device for source in sources})
    slots = {i: tunable for i in used if (tunable := _tunable(plan, i)) is not None}
    if not slots:
        named = ", ".join(f"{d.name} ({d.target})" for d in plan.devices)
        raise CompileError(f"nothing to tune here: the model is for {named}; compile it for this machine")
    chosen: dict[tuple[int, str], Tuned] = {}
    rows: list[TunedKernel] = []
    for number, (slot, (compiler, device)) in enumerate(slots.items()):
        clock = _Clock(begin, begin + budget * (number + 1) / len(slots), progress)
        mine = [s for s in sources if s.device == slot]
        results = TunedKernels(device, compiler.target) if cache else None
        compiler.folder = compiler.folder if cache else None
        for row, result in _tune_slot(plan, slot, mine, compiler, device, results, clock):
            chosen[slot, row.kernel] = result
            rows.append(row)
    wanted = {key: result.parameters for key, result in chosen.items()}
    compilers = {i: compiler for i, (compiler, _) in slots.items()}
    tuned = with_parameters(plan, resources, sources, wanted, compilers)
    rows.sort(key=lambda r: -r.default_us * r.dispatches)
    return Tuning(*tuned, tuple(rows), time.monotonic() - begin)


def _tunable(plan: Plan, slot: int) -> tuple[KernelCompiler, DeviceInfo] | None:
    """The compiler of a slot whose target is a device of this machine, and that device."""
    driver: Backend = backend(plan.devices[slot].driver)
    target: KernelTarget = driver.parse_target(plan.devices[slot].target)
    device = device_here(driver, target)
    return None if device is None else (KernelCompiler(driver, target, Folder("kernels")), device)


@dataclass(frozen=True)
class _Clock:
    """The time budget, by `time.monotonic`."""

    begin: float
    deadline: float
    progress: Progress | None

    def report(self, name: str) -> None:
        """Report the time used."""
        if self.progress:
            total = round(self.deadline - self.begin)
            self.progress(name, min(total, round(time.monotonic() - self.begin)), total)


def _tune_slot(
    plan: Plan,
    slot: int,
    sources: list[KernelSource],
    compiler: KernelCompiler,
    device: DeviceInfo,
    results: TunedKernels | None,
    clock: _Clock,
) -> list[tuple[TunedKernel, Tuned]]:
    jobs = _jobs(plan, slot, sources, compiler, open_device(device.id))
    left = sorted(jobs, key=lambda j: -j.default_ns * j.runs)
    rows = []
    while left:
        job = left.pop(0)
        share = job.default_ns * job.runs / max(1, sum(j.default_ns * j.runs for j in (job, *left)))
        now = time.monotonic()
        until = now + max(0.0, clock.deadline - now) * share
        known = results.get(job.source.source) if results else None
        result = job.search.run(known, until, functools.partial(clock.report, job.source.name))
        job.stopwatch.close()
        if results:
            results.put(job.source.source, result)
        row = TunedKernel(
            plan.devices[slot].name,
            job.source.name,
            job.runs,
            result.default_ns / 1e3,
            result.best_ns / 1e3,
            result.parameters,
            len(result.tried),
            len(job.search.candidates),
        )
        rows.append((row, result))
    return rows


def _jobs(
    plan: Plan, slot: int, sources: list[KernelSource], compiler: KernelCompiler, device: Device
) -> list[_Job]:
    """The tunable kernels, with the times of their defaults."""
    segments = plan.devices[slot].segments
    steps = [s for segment in segments for s in segment.steps if isinstance(s, DispatchStep)]
    runs = Counter(step.entry for step in steps)
    first = {step.entry: step for step in reversed(steps)}
    kinds = {value.id: value.kind for value in plan.values}
    sizes = representative_sizes(plan.dims)
    total = sum(evaluate(v.bytes, sizes) for v in plan.values if v.kind == "constant" and v.device == slot)
    jobs = []
    for source in sources:
        if source.name not in first:
            continue
        dispatch = source.dispatch()
        places = range(len(dispatch.inputs))
        bound = first[source.name].bindings
        constants = frozenset(i for i in places if kinds[bound[i].value] == "constant")
        stopwatch = Stopwatch(device, KernelWorkload(dispatch, constants, sizes, total))
        search = Search(compiler, dispatch, source.source, stopwatch)
        if len(search.candidates) > 1:
            jobs.append(_Job(source, search, stopwatch, runs[source.name], search.default_ns()))
    return jobs
