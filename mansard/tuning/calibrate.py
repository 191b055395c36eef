"""Measuring devices for the cost model: rates, bandwidths, launches, links between them.

Kernels are Mansard's own, compiled for the device as a model's are. All figures are the best of many runs,
except handoffs, which are medians: how long they take varies by nature.
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
from mansard.compiler import CompiledModel, CompileOptions, compile_graph
from mansard.compiler.kernels import CompiledKernel, KernelCompiler
from mansard.compiler.sources import sources_from_bytes
from mansard.compiler.targets import backend
from mansard.dims import evaluate
from mansard.errors import CompileError, DeviceError
from mansard.hal import Device, DeviceInfo, registry
from mansard.ir import Graph
from mansard.placement import PlacementOptions
from mansard.plan.plan import Decision, DispatchStep, Plan
from mansard.targets.calibrated import keep
from mansard.targets.profile import DeviceProfile, LinkProfile, square_depth
from mansard.tuning import chains, links, mixed, probes
from mansard.tuning.calls import CallCosts, call_costs
from mansard.tuning.concurrency import concurrency
from mansard.tuning.timing import Stopwatch, Workload

Progress = Callable[[str, int, int], None]
"""Called with (what is measured, steps done, steps in all)."""
Points = tuple[tuple[float, float], ...]
"""(Operations, operations per second), the smallest first."""
_Figure = TypeVar("_Figure")
DTYPES = ("f32", "f16", "bf16", "i8")
_PRODUCT_SECONDS = 2e-3
"""How long the largest product should take on a device as its shipped profile has it."""
_MEMORY, _MEMORY_DISCRETE = 128 << 20, 1 << 30
"""Bytes that are read in the measurement of memory: more than caches hold, but see `_memory_bytes`."""
_MEMORY_MOST = 2 << 30
_KINDS_SECONDS = 3e-2
"""How long the largest graph with all kinds of work may take."""
_SMALL = 8e6
"""Operations of the smallest product."""
_TINY = 4096
"""Bytes that the smallest dispatch moves."""
_ROUNDS = 4
_FEW, _MOST, _CHAIN_SECONDS = 16, 2048, 2e-3
"""Dispatches one behind the other, and how long they should take together."""


@dataclass(frozen=True)
class Calibration:
    """A device with its measured profile, the one it was shipped with, and what could not be measured."""

    device: DeviceInfo
    profile: DeviceProfile
    shipped: DeviceProfile
    missing: dict[str, str]
    """By figure, why it is the shipped one."""


def calibrate(
    names: Sequence[str], budget: float = 5.0, progress: Progress | None = None, *, store: bool = True
) -> list[Calibration]:
    """Measure devices of this machine, and the links between all of them, for ``budget`` seconds a device.

    With ``store`` the profiles are kept, and placement uses them from then on. Simulated devices are passed
    over: their profile is the model they run by. Raises DeviceUnavailableError for a device that is not here,
    DeviceError where all are simulated.
    """
    opened = [registry.open_device(name) for name in names]
    devices = [device for device in opened if device.info.kind != "simulated"]
    if opened and not devices:
        shown = ", ".join(f"{device.info.id} ({device.info.name})" for device in opened)
        raise DeviceError(
            f"simulated devices have nothing that could be measured, their profile is their model: {shown}"
        )
    steps = (*(d.info.id for d in devices), "links")
    found = []
    for number, device in enumerate(devices):
        if progress:
            progress(steps[number], number, len(steps))
        found.append(_Bench(device, budget).run())
    if progress:
        progress("links", len(devices), len(steps))
    found = with_links(devices, found)
    if progress:
        progress("done", len(steps), len(steps))
    for result in found if store else ():
        keep(result.device, result.profile)
    return found


def with_links(devices: Sequence[Device], found: Sequence[Calibration]) -> list[Calibration]:
    """The calibrations with measured links between the devices and to the host."""
    ways = [links.host_links(device) for device in devices]
    result = []
    for a, calibration in enumerate(found):
        unified = devices[a].capabilities.unified_memory
        costs = _call_costs(calibration, devices[a])
        own = {"host": replace(ways[a].to_host, host_copies=costs.outputs)}
        for b, other in enumerate(devices):
            if a == b:
                continue
            handoff = links.handoff(devices[a], other)
            copied = [
                way
                for device, way in ((devices[a], ways[a].to_host), (other, ways[b].to_device))
                if not device.capabilities.unified_memory
            ] or [ways[b].to_device]
            rate = 1 / sum(1 / way.bytes_per_second for way in copied)
            own[other.info.name] = LinkProfile(rate, handoff, sum(way.copy_seconds for way in copied))
        handoffs = [link.handoff_seconds for name, link in own.items() if name != "host"]
        to_others = max(handoffs, default=ways[a].to_host.handoff_seconds)
        link = replace(ways[a].to_device, handoff_seconds=to_others, host_copies=costs.inputs)
        # The rest of a small call: it copies what it is given and what it gives, and somebody waits.
        known = ways[a].to_host.handoff_seconds
        known += 0.0 if unified else link.copy_seconds + ways[a].to_host.copy_seconds
        start = max(0.0, costs.least - known)
        profile = replace(calibration.profile, link=link, links=own, start=start)
        result.append(replace(calibration, profile=profile))
    return result


def _call_costs(calibration: Calibration, device: Device) -> CallCosts:
    """What calls take beside the device's work; nothing where that cannot be measured."""
    try:
        return call_costs(device)
    except (CompileError, DeviceError) as error:
        calibration.missing["start"] = str(error)
        return CallCosts(0.0, (), ())


class _Bench:
    """The figures of one device by itself."""

    def __init__(self, device: Device, budget: float) -> None:
        self.device = device
        self.backend = backend(device.info.driver)
        self.shipped = self.backend.profile(device.info.driver, device.info)
        self.share = budget / (2 * len(DTYPES) + 2)
        self.missing: dict[str, str] = {}

    def run(self) -> Calibration:
        """Every figure that the device can do; those of the shipped profile for the others."""
        shipped = self.shipped
        cached, layers, kinds = self._cached(), self._figure("launch", self._layers), self._kinds()
        # No launch takes longer than a whole dispatch.
        most = min((size / rate for points in kinds.values() for size, rate in points), default=math.inf)
        launches = self._launches(layers, cached or shipped.cache_bandwidth, most)
        # A product of one row is the smallest of all, and as deep as any.
        least = ((layers[""].operations, layers[""].rate),) if layers else ()
        memory, writing = self._memory()
        bandwidth = memory or shipped.bandwidth
        products = {dtype: self._products(dtype) for dtype in DTYPES}
        measured = {dtype: points[-1][1] for dtype, (points, _) in products.items() if points}
        # What is not measured keeps its ratio to f32.
        ratio = measured.get("f32", shipped.rates["f32"]) / shipped.rates["f32"]
        rates = {dtype: rate * ratio for dtype, rate in shipped.rates.items()} | measured
        profile = replace(
            shipped,
            name=self.device.info.name,
            bandwidth=bandwidth,
            write_bandwidth=writing,
            cache_bandwidth=max(bandwidth, cached or shipped.cache_bandwidth),
            rates=rates,
            small={dtype: (*least, *points) for dtype, (points, _) in products.items() if points},
            deep={dtype: (*least, *deep) for dtype, (_, deep) in products.items() if deep},
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

    def _launches(self, layers: Mapping[str, chains.Mean] | None, cached: float, most: float) -> Points:
        """(Operations, seconds) of launches, the last of any larger dispatch and none above ``most``; empty
        where they could not be measured.

        Dispatches ordered one behind the other take launch + bytes / bandwidth each. The least that one takes
        is that of a norm of few numbers: memory answers twice, as in most small kernels. For the same kernel
        again and again that is less than in a model, where every dispatch finds the code of another one in
        the caches, and its operands in those of other cores: there it is what norms and products of one row
        take, less what their operations and bytes do, by the clock by which products are measured. A CPU runs
        such a norm on one thread, which hands nothing over.
        """
        least = self._figure("launch", lambda: self._chained(probes.norm(_TINY // 8)))
        if least is None or layers is None:
            return ()
        rate = self.shipped.rate("f32")
        light, heavy = (
            (size, min(most, max(least, seconds - max(size / rate, moved / cached), seconds / 4)))
            for seconds, size, moved in (layers["rows"], layers[""])
        )
        return (light, heavy) if light[1] < heavy[1] else (light,)

    def _layers(self) -> Mapping[str, chains.Mean]:
        """Small dispatches in a model, norms of one row (``rows``) and products of it."""
        return chains.kind_seconds(self.device, probes.layers(), self.share / 4)

    def _cached(self) -> float | None:
        """Bytes per second from the cache, by two sizes of dispatches ordered one behind the other."""
        most = self.shipped.cache_bytes // 2
        if most // 4 <= _TINY:
            return None
        small = self._figure("cache_bandwidth", lambda: self._chained(probes.stream(most // 32)))
        large = self._figure("cache_bandwidth", lambda: self._chained(probes.stream(most // 8)))
        if small is None or large is None:
            return None
        if large <= small:
            self.missing["cache_bandwidth"] = "larger dispatches took no longer than smaller ones"
            return None
        return (most - most // 4) / (large - small)

    def _chained(self, graph: Graph) -> float:
        """Seconds that one more dispatch, the only one of a graph, adds to a submission."""
        made = self._compiled(graph)
        ((kernel, workload, _),) = self._kernels(made.plan, made.sources)
        with closing(Stopwatch(self.device, workload)) as stopwatch:
            stopwatch.measure([kernel], _ROUNDS)
            links.wake(self.device)

            def quickest(rounds: int) -> float:
                return links.submission_seconds(self.device, stopwatch.commands([kernel], rounds))

            once = quickest(1)
            each = max(1e-7, (quickest(1 + _FEW) - once) / _FEW)
            count = min(_MOST, max(_FEW, round(_CHAIN_SECONDS / each)))
            often = quickest(1 + count)
        if often <= once:
            raise DeviceError(f"{count} dispatches took no longer than one: too many others use the device")
        return (often - once) / count

    def _memory(self) -> tuple[float | None, float]:
        """Bytes per second read from memory, as layers read weights, and written to it.

        The latter is 0 where a kernel that does both is no slower for it.
        """
        size = _memory_bytes(self.device.info)
        reading = self._figure("bandwidth", lambda: self._passed(probes.sums(size // 4)))
        both = self._figure("write_bandwidth", lambda: self._passed(probes.stream(size // 8)))
        if reading is None or both is None or both >= reading:
            return max(reading or 0.0, both or 0.0) or None, 0.0
        return reading, 1 / (2 / both - 1 / reading)

    def _passed(self, graph: Graph) -> float:
        seconds, moved, _ = self._time(graph)
        return moved / seconds

    def _products(self, dtype: str) -> tuple[Points, Points]:
        """Operations per second of products of growing size, launches included, and of deep ones; empty where
        the device has none of the type."""
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
        """Operations per second of whole dispatches by kind of work, for growing sizes."""
        points: dict[str, list[tuple[float, float]]] = {}
        most = self.shipped.rate("f32") * _KINDS_SECONDS
        graphs = [graph for graph in map(mixed.graph, mixed.SIZES) if mixed.operations(graph) < most]
        for graph in graphs or [mixed.graph(mixed.SIZES[0])]:
            try:
                found = chains.kind_seconds(self.device, graph, self.share / 2)
            except (CompileError, DeviceError) as error:
                self.missing["kinds"] = str(error)
                break
            for kind, row in found.items():
                points.setdefault(kind, []).append((row.operations, row.rate))
        return {kind: tuple(rows) for kind, rows in points.items() if kind}

    def _time(self, graph: Graph) -> tuple[float, int, int]:
        """Seconds of all kernels of a graph, with the bytes and operations of the cost model."""
        made = self._compiled(graph)
        kernels = self._kernels(made.plan, made.sources)
        total = 0.0
        for kernel, workload, runs in kernels:
            with closing(Stopwatch(self.device, workload)) as stopwatch:
                total += runs * self._best(stopwatch, kernel, self.share / len(kernels))
        moved = sum(evaluate(d.bytes, {}) for d in made.plan.decisions)
        return total, moved, sum(evaluate(d.operations, {}) for d in made.plan.decisions)

    def _compiled(self, graph: Graph) -> CompiledModel:
        options = CompileOptions(targets=(self.device.info.id,), placement=PlacementOptions(fallback="error"))
        return compile_graph(graph, options)

    def _kernels(self, plan: Plan, sources: bytes | None) -> list[tuple[CompiledKernel, Workload, int]]:
        if sources is None:
            raise DeviceError(f"the kernels of {self.device.info.id} cannot be run alone")
        (slot,) = plan.devices
        target = self.backend.parse_target(slot.target)
        compiler = KernelCompiler(self.backend, target, Folder("kernels"))
        steps = [s for part in slot.segments for s in part.steps if isinstance(s, DispatchStep)]
        runs = Counter(step.entry for step in steps)
        bound = {step.entry: step.bindings for step in steps}
        kinds = {value.id: value.kind for value in plan.values}
        found = []
        for source in sources_from_bytes(sources):
            dispatch = source.dispatch()
            places = range(len(dispatch.inputs))
            constants = frozenset(i for i in places if kinds[bound[source.name][i].value] == "constant")
            kernel = compiler.compile(dispatch, source.source, source.parameters)
            found.append((kernel, Workload(dispatch, constants, {}, 0), runs[source.name]))
        return found

    def _best(self, stopwatch: Stopwatch, kernel: CompiledKernel, budget: float) -> float:
        """Seconds of the quickest run within a budget of seconds."""
        if not stopwatch.loads(kernel):
            raise DeviceError(f"{self.device.info.id} does not load kernel {kernel.name!r}")
        until, best = time.monotonic() + budget, math.inf
        while True:
            (spans,) = stopwatch.measure([kernel], _ROUNDS)
            best = min(best, *spans)
            if time.monotonic() >= until:
                return max(best, 1) / 1e9


def _append(points: list[tuple[float, float]], rows: Sequence[tuple[float, float]]) -> None:
    """Add operations, and operations per second, of dispatches with their seconds and operations, if they are
    larger than the last. What is measured slower than a smaller size was disturbed."""
    took = sum(seconds for seconds, _ in rows)
    size = sum(operations for _, operations in rows)
    if rows and (not points or size / len(rows) > points[-1][0]):
        points.append((size / len(rows), max(size / took, points[-1][1] if points else 0.0)))


def _is_deep(decision: Decision) -> bool:
    depth = evaluate(decision.depth, {})
    return depth > square_depth(evaluate(decision.operations, {}))


def _memory_bytes(device: DeviceInfo) -> int:
    """Bytes to read where memory is to be measured: on cores at least four times their largest cache, since
    servers have caches of hundreds of megabytes that keep part of what is read over and over."""
    if device.kind == "discrete":
        return _MEMORY_DISCRETE
    largest = _largest_cache() if device.kind in ("cpu", "software") else 0
    return min(_MEMORY_MOST, max(_MEMORY, -(-4 * largest // _MEMORY) * _MEMORY))


def _largest_cache() -> int:
    """Bytes of the largest cache of the first core, as Linux tells it; 0 where it does not."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        number = path.read_text().strip()
        if number.endswith("K") and number[:-1].isdigit():
            sizes.append(int(number[:-1]) << 10)
    return max(sizes)


def to_toml(found: Sequence[Calibration]) -> str:
    """The calibrations as a file for `mansard simulate --profile`: a table per device."""

    def tables(name: str, own: str) -> list[str]:
        """The tables of the devices of a name, of which there may be several."""
        return [c.device.id for c in found if c.device.name == name and c.device.id != own] or [name]

    lines = ['name = "measured"']
    for calibration in found:
        profile = calibration.profile
        figures = {
            "bandwidth": profile.bandwidth,
            "write_bandwidth": profile.write_bandwidth,
            "cache_bandwidth": profile.cache_bandwidth,
            "cache_bytes": profile.cache_bytes,
            "launch": profile.launch,
            "link": profile.link.bytes_per_second,
            "handoff": profile.link.handoff_seconds,
            "start": profile.start,
            "concurrency": profile.concurrency,
        }
        ways = {
            table: {"link": way.bytes_per_second, "handoff": way.handoff_seconds, **_copies(way)}
            for name, way in profile.links.items()
            for table in tables(name, calibration.device.id)
        }
        lines += [f'\n["{calibration.device.id}"]', f"# {profile.name}, measured {profile.measured}"]
        lines += [f"{key} = {_figure(value)}" for key, value in (figures | _copies(profile.link)).items()]
        if profile.launches:
            lines.append(f"launches = {_figure(profile.launches)}")
        if profile.cores:
            lines.append(f'cores = "{profile.cores}"')
        lines += [f"unified = {str(profile.unified).lower()}", f"rates = {_inline(profile.rates)}"]
        for key, sizes in (("small", profile.small), ("deep", profile.deep), ("kinds", profile.kinds)):
            points = (f"{d} = [{', '.join(map(_pair, rows))}]" for d, rows in sizes.items())
            lines += [f"{key} = {{ {', '.join(points)} }}"] * bool(sizes)
        shown = ", ".join(f'"{name}" = {_inline(way)}' for name, way in ways.items())
        lines.append(f"links = {{ {shown} }}")
    return "\n".join(lines) + "\n"


def _copies(link: LinkProfile) -> dict[str, float | Points]:
    """What is known of a link's copies."""
    known: dict[str, float | Points] = {"copy": link.copy_seconds, "host_copies": link.host_copies}
    return {key: value for key, value in known.items() if value}


def _inline(figures: Mapping[str, float | Points]) -> str:
    return f"{{ {', '.join(f'{key} = {_figure(value)}' for key, value in figures.items())} }}"


def _pair(point: tuple[float, float]) -> str:
    return f"[{_figure(point[0])}, {_figure(point[1])}]"


def _figure(value: float | Points) -> str:
    """Six digits, as TOML writes numbers."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_pair, value))}]"
    return str(value) if isinstance(value, int) else f"{value:.6g}"
