"""The figures of one device: rates, bandwidths, launches, concurrency.

The kernels are Mansard's, compiled for the device as in a model. All figures are the best of many runs.
"""

from __future__ import annotations

import datetime
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from mansard.cache import Folder
from mansard.calibration import chains, links, mixed_graphs, probes
from mansard.calibration.concurrency import concurrency
from mansard.codegen.backend import CompiledDispatch
from mansard.compiler import CompiledModel, CompileOptions, compile_graph
from mansard.compiler.kernels import KernelCompiler
from mansard.compiler.sources import sources_from_bytes
from mansard.compiler.targets import backend
from mansard.dims import evaluate
from mansard.errors import CompileError, DeviceError
from mansard.hal import Device, DeviceInfo
from mansard.ir import Graph
from mansard.placement import PlacementOptions
from mansard.plan.plan import Decision, DispatchStep, Plan
from mansard.targets.profile import DeviceProfile, square_depth
from mansard.tuning.timing import KernelWorkload, Stopwatch

Points = tuple[tuple[float, float], ...]
"""(operations, operations per second), in ascending order."""
_Figure = TypeVar("_Figure")
DTYPES = ("f32", "f16", "bf16", "i8")
_PRODUCT_SECONDS = 2e-3
"""The desired time of the largest product, by the device's shipped profile."""
_MEMORY, _MEMORY_DISCRETE = 128 << 20, 1 << 30
"""Bytes that are read to measure memory: more than most caches hold, but see `_memory_bytes`."""
_MEMORY_MAX = 2 << 30
_KINDS_SECONDS = 3e-2
"""The time limit of the largest graph with all kinds of work."""
_SMALL = 8e6
"""Operations of the smallest product."""
_TINY = 4096
"""Bytes of the smallest dispatch."""
_ROUNDS = 4
_FEW, _MAX_CHAIN, _CHAIN_SECONDS = 16, 2048, 2e-3
"""The number of chained dispatches, and their desired total time."""


@dataclass(frozen=True)
class Calibration:
    """A device with its measured profile, its shipped profile, and the figures that could not be measured."""

    device: DeviceInfo
    profile: DeviceProfile
    shipped: DeviceProfile
    missing: dict[str, str]
    """By figure, the reason why it was not measured."""


class DeviceBench:
    """Measures the figures of one device alone."""

    def __init__(self, device: Device, budget: float) -> None:
        self.device = device
        self.backend = backend(device.info.driver)
        self.shipped = self.backend.profile(device.info.driver, device.info)
        self.share = budget / (2 * len(DTYPES) + 2)
        self.missing: dict[str, str] = {}

    def run(self) -> Calibration:
        """All figures that can be measured on the device; the others are those of the shipped profile."""
        shipped = self.shipped
        cached, layers, kinds = self._cached(), self._figure("launch", self._layers), self._kinds()
        # A launch takes no longer than a whole dispatch.
        launch_limit = min(
            (size / rate for points in kinds.values() for size, rate in points), default=math.inf
        )
        launches = self._launches(layers, cached or shipped.cache_bandwidth, launch_limit)
        # A product of one row is the smallest, and is deep.
        smallest_product = ((layers[""].operations, layers[""].rate),) if layers else ()
        memory, writing = self._memory()
        bandwidth = memory or shipped.bandwidth
        products = {dtype: self._products(dtype) for dtype in DTYPES}
        measured = {dtype: points[-1][1] for dtype, (points, _) in products.items() if points}
        # Types that are not measured keep their ratio to f32.
        ratio = measured.get("f32", shipped.rates["f32"]) / shipped.rates["f32"]
        rates = {dtype: rate * ratio for dtype, rate in shipped.rates.items()} | measured
        profile = replace(
            shipped,
            name=self.device.info.name,
            bandwidth=bandwidth,
            write_bandwidth=writing,
            cache_bandwidth=max(bandwidth, cached or shipped.cache_bandwidth),
            rates=rates,
            small={dtype: (*smallest_product, *points) for dtype, (points, _) in products.items() if points},
            deep={dtype: (*smallest_product, *deep) for dtype, (_, deep) in products.items() if deep},
            kinds=kinds,
            concurrency=self._figure("concurrency", lambda: concurrency(self.device)) or shipped.concurrency,
            launch=launches[-1][1] if launches else shipped.launch,
            launches=launches if len(launches) > 1 else (),
            unified=self.device.capabilities.unified_memory,
            measured=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )
        return Calibration(self.device.info, profile, shipped, self.missing)

    def _figure(self, name: str, measure: Callable[[], _Figure]) -> _Figure | None:
        try:
            return measure()
        except (CompileError, DeviceError) as error:
            self.missing[name] = str(error)
            return None

    def _launches(self, layers: Mapping[str, chains.Mean] | None, cached: float, limit: float) -> Points:
        """(operations, seconds) of launches, at most ``limit``; the last applies to all larger dispatches.
        Empty if they could not be measured.

        Dependent dispatches take launch + bytes / bandwidth each. The minimum is measured with a norm of few
        numbers, which has two memory latencies, as most small kernels do. A repeated kernel takes less than
        one in a model, where every dispatch finds the code of another one in the caches, and its operands in
        those of other cores. In a model, the launch is the time of norms and products of one row minus that
        of their operations and bytes, at the clock frequency at which products are measured. A CPU runs such
        a norm on one thread, without a handover between threads.
        """
        shortest = self._figure("launch", lambda: self._chained(probes.norm(_TINY // 8)))
        if shortest is None or layers is None:
            return ()
        rate = self.shipped.rate("f32")
        light, heavy = (
            (size, min(limit, max(shortest, seconds - max(size / rate, moved / cached), seconds / 4)))
            for seconds, size, moved in (layers["rows"], layers[""])
        )
        return (light, heavy) if light[1] < heavy[1] else (light,)

    def _layers(self) -> Mapping[str, chains.Mean]:
        """Times of small dispatches in a model: norms of one row (``rows``) and products of one row."""
        return chains.kind_seconds(self.device, probes.layers(), self.share / 4)

    def _cached(self) -> float | None:
        """Bytes per second from the cache, by two sizes of dependent dispatches."""
        cached_bytes = self.shipped.cache_bytes // 2
        if cached_bytes // 4 <= _TINY:
            return None
        small = self._figure("cache_bandwidth", lambda: self._chained(probes.stream(cached_bytes // 32)))
        large = self._figure("cache_bandwidth", lambda: self._chained(probes.stream(cached_bytes // 8)))
        if small is None or large is None:
            return None
        if large <= small:
            self.missing["cache_bandwidth"] = "larger dispatches took no longer than smaller ones"
            return None
        return (cached_bytes - cached_bytes // 4) / (large - small)

    def _chained(self, graph: Graph) -> float:
        """Seconds that one more dispatch adds to a submission, for a graph with a single dispatch."""
        compiled = self._compiled(graph)
        ((kernel, workload, _),) = self._kernels(compiled.plan, compiled.sources)
        with closing(Stopwatch(self.device, workload)) as stopwatch:
            stopwatch.measure([kernel], _ROUNDS)
            links.wake(self.device)

            def quickest(rounds: int) -> float:
                return links.submission_seconds(self.device, stopwatch.commands([kernel], rounds))

            once = quickest(1)
            each = max(1e-7, (quickest(1 + _FEW) - once) / _FEW)
            count = min(_MAX_CHAIN, max(_FEW, round(_CHAIN_SECONDS / each)))
            often = quickest(1 + count)
        if often <= once:
            raise DeviceError(
                f"{count} dispatches took no longer than one: other work disturbs the measurement"
            )
        return (often - once) / count

    def _memory(self) -> tuple[float | None, float]:
        """Bytes per second read from memory, as layers read weights, and written to it. The latter is 0 if a
        kernel that reads and writes is no slower.
        """
        size = _memory_bytes(self.device.info)
        reading = self._figure("bandwidth", lambda: self._bandwidth(probes.sums(size // 4)))
        both = self._figure("write_bandwidth", lambda: self._bandwidth(probes.stream(size // 8)))
        if reading is None or both is None or both >= reading:
            return max(reading or 0.0, both or 0.0) or None, 0.0
        return reading, 1 / (2 / both - 1 / reading)

    def _bandwidth(self, graph: Graph) -> float:
        seconds, moved, _ = self._time(graph)
        return moved / seconds

    def _products(self, dtype: str) -> tuple[Points, Points]:
        """Operations per second of products of increasing size, including launches, and of deep ones; empty
        if the device has none of the type."""
        points: list[tuple[float, float]] = []
        deep: list[tuple[float, float]] = []
        wanted, end = _SMALL, self.shipped.rate(dtype) * _PRODUCT_SECONDS
        while wanted < end or not points:
            shapes, deeper = probes.products(dtype, wanted), probes.deep_products(dtype, wanted)
            part = self.share / (len(shapes) + 1) / max(1.0, math.log(end / _SMALL, 4))
            try:
                rows = [chains.dispatch_seconds(self.device, graph, part) for graph in shapes]
                few = [chains.dispatch_seconds(self.device, deeper, part, _is_deep)] if deeper else []
            except (CompileError, DeviceError) as error:
                self.missing[f"rates.{dtype}"] = str(error)
                break
            _append(points, rows)
            _append(deep, few)
            wanted *= 4
        return tuple(points), tuple(deep)

    def _kinds(self) -> dict[str, Points]:
        """Operations per second of whole dispatches by kind of work, for increasing sizes."""
        points: dict[str, list[tuple[float, float]]] = {}
        max_operations = self.shipped.rate("f32") * _KINDS_SECONDS
        graphs = [
            graph
            for graph in map(mixed_graphs.graph, mixed_graphs.SIZES)
            if mixed_graphs.operations(graph) < max_operations
        ]
        for graph in graphs or [mixed_graphs.graph(mixed_graphs.SIZES[0])]:
            try:
                seconds_by_kind = chains.kind_seconds(self.device, graph, self.share / 2)
            except (CompileError, DeviceError) as error:
                self.missing["kinds"] = str(error)
                break
            for kind, row in seconds_by_kind.items():
                points.setdefault(kind, []).append((row.operations, row.rate))
        return {kind: tuple(rows) for kind, rows in points.items() if kind}

    def _time(self, graph: Graph) -> tuple[float, int, int]:
        """Seconds of all kernels of a graph, with the bytes and operations of the cost model."""
        compiled = self._compiled(graph)
        kernels = self._kernels(compiled.plan, compiled.sources)
        total = 0.0
        for kernel, workload, runs in kernels:
            with closing(Stopwatch(self.device, workload)) as stopwatch:
                total += runs * self._best(stopwatch, kernel, self.share / len(kernels))
        moved = sum(evaluate(d.bytes, {}) for d in compiled.plan.decisions)
        return total, moved, sum(evaluate(d.operations, {}) for d in compiled.plan.decisions)

    def _compiled(self, graph: Graph) -> CompiledModel:
        options = CompileOptions(targets=(self.device.info.id,), placement=PlacementOptions(fallback="error"))
        return compile_graph(graph, options)

    def _kernels(
        self, plan: Plan, sources: bytes | None
    ) -> list[tuple[CompiledDispatch, KernelWorkload, int]]:
        if sources is None:
            raise DeviceError(f"the kernels of {self.device.info.id} cannot be run separately")
        (slot,) = plan.devices
        target = self.backend.parse_target(slot.target)
        compiler = KernelCompiler(self.backend, target, Folder("kernels"))
        steps = [s for part in slot.segments for s in part.steps if isinstance(s, DispatchStep)]
        runs = Counter(step.entry for step in steps)
        bound = {step.entry: step.bindings for step in steps}
        kinds = {value.id: value.kind for value in plan.values}
        kernels = []
        for source in sources_from_bytes(sources):
            dispatch = source.dispatch()
            places = range(len(dispatch.inputs))
            constants = frozenset(i for i in places if kinds[bound[source.name][i].value] == "constant")
            kernel = compiler.compile(dispatch, source.source, source.parameters)
            kernels.append((kernel, KernelWorkload(dispatch, constants, {}, 0), runs[source.name]))
        return kernels

    def _best(self, stopwatch: Stopwatch, kernel: CompiledDispatch, budget: float) -> float:
        """Seconds of the fastest run within a budget of seconds."""
        if not stopwatch.loads(kernel):
            raise DeviceError(f"{self.device.info.id} does not load kernel {kernel.name!r}")
        until, best = time.monotonic() + budget, math.inf
        while True:
            (spans,) = stopwatch.measure([kernel], _ROUNDS)
            best = min(best, *spans)
            if time.monotonic() >= until:
                return max(best, 1) / 1e9


def _append(points: list[tuple[float, float]], rows: Sequence[tuple[float, float]]) -> None:
    """Append (operations, operations per second) of dispatches given by seconds and operations, if they are
    larger than the last. A lower rate than that of a smaller size is a disturbed measurement."""
    took = sum(seconds for seconds, _ in rows)
    size = sum(operations for _, operations in rows)
    if rows and (not points or size / len(rows) > points[-1][0]):
        points.append((size / len(rows), max(size / took, points[-1][1] if points else 0.0)))


def _is_deep(decision: Decision) -> bool:
    depth = evaluate(decision.depth, {})
    return depth > square_depth(evaluate(decision.operations, {}))


def _memory_bytes(device: DeviceInfo) -> int:
    """Bytes to read to measure memory: on CPU cores at least four times their largest cache, since servers
    have caches of hundreds of megabytes, which retain part of the data between runs."""
    if device.kind == "discrete":
        return _MEMORY_DISCRETE
    largest = _largest_cache() if device.on_host_cores else 0
    return min(_MEMORY_MAX, max(_MEMORY, -(-4 * largest // _MEMORY) * _MEMORY))


def _largest_cache() -> int:
    """Bytes of the largest cache of the first core as reported by Linux; 0 if unknown."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        number = path.read_text().strip()
        if number.endswith("K") and number[:-1].isdigit():
            sizes.append(int(number[:-1]) << 10)
    return max(sizes)
