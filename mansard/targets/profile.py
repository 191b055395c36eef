"""Device profiles: the rates behind the cost model."""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mansard.errors import PlacementError
from mansard.targets.gpus import Gpu, known_gpus

DEEP = 8
"""How many times deeper than a square product the products of `DeviceProfile.deep` are: the last convolutions
of networks for images are five to ten times deeper."""

KINDS = ("rows", "attention", "depthwise", "shallow")
"""Kinds of work with figures of their own: see `mansard.placement.kinds`."""


@dataclass(frozen=True)
class LinkProfile:
    """Moving data between a device's memory and the host's."""

    bytes_per_second: float
    handoff_seconds: float
    copy_seconds: float = 0.0
    """Fixed cost of a copy, whatever its size."""
    host_copies: tuple[tuple[float, float], ...] = ()
    """(Bytes, seconds) of the host's own copies between the caller's arrays and memory that the device sees,
    the smallest first; empty: the device uses the arrays in place."""

    def host_seconds(self, size: float) -> float:
        """Seconds of the host's own copy of so many bytes, along straight lines between those measured."""
        if not self.host_copies:
            return 0.0
        points = ((0.0, 0.0), *self.host_copies)
        (less, sooner), (more, later) = next(
            (pair for pair in itertools.pairwise(points) if size <= pair[1][0]), points[-2:]
        )
        return sooner + (later - sooner) * (size - less) / (more - less)


@dataclass(frozen=True)
class DeviceProfile:
    """The rates of a device in the cost model. All times in seconds, sizes in bytes."""

    name: str
    bandwidth: float
    cache_bandwidth: float
    cache_bytes: int
    rates: Mapping[str, float]
    launch: float
    link: LinkProfile
    """From the host's memory to the device's, and the handoff to a device that ``links`` does not name."""
    unified: bool
    links: Mapping[str, LinkProfile] = field(default_factory=dict, hash=False)
    """From this device to others, by the name of their profile, and to the host, as ``host``."""
    measured: str = ""
    """The date of the calibration; empty for a shipped profile."""
    write_bandwidth: float = 0.0
    """Bytes per second written to memory; 0: as ``bandwidth``. CPUs with write-allocate caches read what
    they are about to overwrite."""
    cores: str = ""
    """Devices with the same name here share their cores, and do not compute at once. Empty: none are
    shared."""
    small: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict, hash=False)
    """By element type (operations, operations per second) of whole dispatches with their launch that are too
    small for ``rates``, the smallest first, the last as large as those: short of work for all of its cores, a
    GPU is far below."""
    vector: float = 0.0
    """Operations per second of what is fused to products, on a device with a unit of its own for that, which
    works after them; 0: it counts as they do."""

    deep: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict, hash=False)
    """As ``small``, of products whose sums are `DEEP` times as deep as those of a product of square matrices
    with as many operations: there are fewer elements for the cores to share. Larger ones than the last go by
    ``small`` and ``rates``."""
    start: float = 0.0
    """Seconds from a call until the device starts work that waits for inputs alone."""

    kinds: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict, hash=False)
    """As ``small`` by kind of work (`KINDS`), in f32; what is not listed goes by the other figures."""
    launches: tuple[tuple[float, float], ...] = ()
    """(Operations, seconds) of launches of dispatches with so few operations that they take less than
    ``launch``, the smallest first: a CPU calls no other core for them. The last takes all of it."""

    concurrency: float = 1.0
    """How many small dispatches a device does in the time of one, where those of several calls run side by
    side (`Capabilities.compute_queues`)."""

    def launch_of(self, operations: float) -> float:
        """Seconds of the launch of a dispatch; between measured sizes they change as a power of them."""
        return _between(self.launches, operations, self.launch)

    def seconds(self, operations: float, dtype: str, depth: float = 0) -> float:
        """Seconds of a dispatch's operations, of which products have ``depth`` in each sum; between measured
        sizes and depths rates change as powers of them."""
        listed = self._listed(dtype)
        usual = _time(self.small.get(listed, ()), operations, self.rates[listed])
        points = self.deep.get(listed, ())
        if not points or not 0 < operations <= points[-1][0]:
            return usual
        deeper = max(1.0, depth / square_depth(operations))
        part = min(1.0, math.log(deeper) / math.log(DEEP))
        slower = _time(points, operations, points[-1][1]) / usual
        return usual * math.pow(max(1.0, slower), part)

    def whole_seconds(self, operations: float, dtype: str, depth: float = 0, kind: str = "") -> float:
        """Seconds of a dispatch with its launch, but for what memory may take, by measured dispatches of its
        kind or type; 0 where there are none. Kinds are measured in f32: rows take the same in all types,
        others in proportion to products of the size."""
        points = self.kinds.get(kind)
        if operations <= 0 or not (points or self._listed(dtype) in self.small):
            return 0.0
        product = self.seconds(operations, dtype, depth)
        if not points:
            return product
        measured = _time(points, operations, _grown(points, operations, self.rates["f32"]))
        same = kind == "rows" or self._listed(dtype) == "f32"
        return measured if same else measured * product / self.seconds(operations, "f32", depth)

    def rate(self, dtype: str) -> float:
        """Operations per second for an element type: the f32 rate when it is not listed, one for bytes of
        either sign."""
        return self.rates[self._listed(dtype)]

    def _listed(self, dtype: str) -> str:
        """The element type whose figures stand for one."""
        if dtype == "u8" and dtype not in self.rates:
            dtype = "i8"
        return dtype if dtype in self.rates else "f32"


def square_depth(operations: float) -> float:
    """How many products each sum of a product of square matrices has, of so many multiplies and adds."""
    return math.cbrt(operations / 2)


def _time(points: Sequence[tuple[float, float]], operations: float, rate: float) -> float:
    """Seconds of operations by the rates of points, smaller ones by that of the first, larger ones by
    ``rate``."""
    return operations / _between(points, operations, rate)


def _grown(points: Sequence[tuple[float, float]], at: float, limit: float) -> float:
    """The rate beyond the last of points: if it rose, it goes on to rise like that up to ``limit``."""
    (size, first), (larger, last) = points[-2:] if len(points) > 1 else (points[0], points[0])
    if last <= first or at <= larger:
        return last
    return max(
        last, min(limit, last * math.pow(at / larger, math.log(last / first) / math.log(larger / size)))
    )


def _between(points: Sequence[tuple[float, float]], at: float, beyond: float) -> float:
    """The second figure of points at a size, between two of them by a power of it; that of the first for
    smaller ones, ``beyond`` from the last on."""
    for (size, first), (larger, second) in itertools.pairwise(points):
        if at < larger:
            part = math.log(max(1.0, at / size)) / math.log(larger / size)
            return first * math.pow(second / first, part)
    return beyond


@functools.cache
def _data() -> Mapping[str, Any]:
    text = importlib.resources.files("mansard.targets").joinpath("data/profiles.toml").read_text("utf-8")
    return tomllib.loads(text)


def default_profile(kind: str) -> DeviceProfile:
    """The shipped profile of a kind of device (`mansard.hal.DeviceInfo.kind`); that of a simulated device for
    kinds without one."""
    name = kind if kind in _data() else "simulated"
    name = _data()[name].get("like", name)
    raw = _data()[name]
    scale = float(len(os.sched_getaffinity(0))) if raw["per_core"] else 1.0
    return profile_from(name, raw, scale, unified=raw["unified"])


def gpu_profile(gpu: Gpu, kind: str = "") -> DeviceProfile:
    """The profile of a GPU that is known by name: that of its kind, which is of one product, in proportion.

    Bandwidths scale with the bandwidth of memory, rates with the rate of f32. An architecture alone has
    neither and gets the profile of its kind.
    """
    base = default_profile(kind or gpu.kind)
    reference = known_gpus().get(_data()[base.name].get("reference", ""))
    if reference is None or not (gpu.bandwidth and gpu.f32 and reference.bandwidth and reference.f32):
        return base
    faster, stronger = gpu.bandwidth / reference.bandwidth, gpu.f32 / reference.f32
    return replace(
        base,
        name=gpu.name,
        bandwidth=base.bandwidth * faster,
        cache_bandwidth=base.cache_bandwidth * faster,
        rates={dtype: rate * stronger for dtype, rate in base.rates.items()},
    )


def profile_from(name: str, raw: Mapping[str, Any], scale: float, *, unified: bool) -> DeviceProfile:
    """A profile from its TOML table; raises PlacementError naming a missing key."""
    try:
        return DeviceProfile(
            name=name,
            bandwidth=raw["bandwidth"] * scale,
            cache_bandwidth=raw["cache_bandwidth"] * scale,
            cache_bytes=raw["cache_bytes"],
            rates={k: v * scale for k, v in raw["rates"].items()},
            launch=raw["launch"],
            link=LinkProfile(raw["link"], raw["handoff"]),
            unified=unified,
            cores=raw.get("cores", ""),
        )
    except KeyError as error:
        raise PlacementError(f"device profile {name!r} lacks {error.args[0]!r}") from error
