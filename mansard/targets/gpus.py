"""GPUs that are compile targets by name: architectures, LLVM's names, products (data/gpus.toml)."""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mansard.hal.device import DeviceInfo


@dataclass(frozen=True)
class Gpu:
    """A GPU as a target: an architecture, or a product of one."""

    name: str
    architecture: str
    features: frozenset[str]
    """Named features (`mansard.hal.Capabilities`), those of ``matrices`` among them."""
    matrices: tuple[str, ...]
    """Names of the features that stand for shapes of matrices: ``matrix_16x16x16_f16_f32``."""
    subgroup: tuple[int, int]
    """Minimum and maximum invocations of a subgroup."""
    shared: int
    """Bytes of shared memory of a workgroup."""
    workgroup: int
    """Invocations of a workgroup."""
    held: int
    """Invocations one core holds at a time."""
    kind: str
    """discrete, integrated or software."""
    allocation: int
    """Bytes of one buffer that its drivers allow."""
    units: int | None = None
    """Cores; None for an architecture."""
    bandwidth: float | None = None
    """Bytes per second of memory; None for an architecture."""
    f32: float | None = None
    """Operations per second of f32, a multiply-add counted as two; None for an architecture."""
    rates: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Operations per second of other element types, dense matrix products with f32 or i32 sums included."""
    devices: tuple[str, ...] = ()
    """Parts of the names by which Vulkan knows the devices."""


@functools.cache
def known_gpus() -> Mapping[str, Gpu]:
    """Every GPU by each of its names."""
    text = importlib.resources.files("mansard.targets").joinpath("data/gpus.toml").read_text("utf-8")
    data = tomllib.loads(text)
    architectures: dict[str, Gpu] = {}
    gpus: dict[str, Gpu] = {}
    for name, raw in data["architectures"].items():
        architectures[name] = _architecture(name, raw, architectures.get(raw.get("parent", "")))
    products = {name: _product(name, raw, architectures) for name, raw in data["products"].items()}
    for name, gpu in architectures.items():
        devices = tuple(d for p in products.values() if p.architecture == name for d in p.devices)
        whole = replace(gpu, devices=devices)
        gpus |= dict.fromkeys((name, *data["architectures"][name].get("names", ())), whole)
    return gpus | products


def near_names(name: str, count: int = 5) -> list[str]:
    """Known names that look like a wrong one, the nearest first."""
    return difflib.get_close_matches(name.lower(), known_gpus(), count, 0.6)


def product_of(device: DeviceInfo) -> Gpu | None:
    """The product that a device is; None when the table does not know its name. The longest name counts."""
    fits = [
        (len(part), gpu)
        for gpu in known_gpus().values()
        if gpu.units is not None
        for part in gpu.devices
        if device.is_product(part)
    ]
    return max(fits, key=lambda fit: fit[0])[1] if fits else None


def _architecture(name: str, raw: Mapping[str, Any], parent: Gpu | None) -> Gpu:
    matrices = tuple(f"matrix_{text.replace(' ', '_')}" for text in raw.get("matrices", ()))
    if parent is not None:
        matrices = (*parent.matrices, *matrices)
    inherited = parent.features if parent is not None else frozenset[str]()
    changes = {key: raw[key] for key in ("shared", "workgroup", "held", "kind", "allocation") if key in raw}
    if "subgroup" in raw:
        changes["subgroup"] = tuple(raw["subgroup"])
    features = inherited | frozenset(raw.get("features", "").split()) | frozenset(matrices)
    if parent is None:
        return Gpu(name=name, architecture=name, features=features, matrices=matrices, **changes)
    return replace(parent, name=name, architecture=name, features=features, matrices=matrices, **changes)


def _product(name: str, raw: Mapping[str, Any], architectures: Mapping[str, Gpu]) -> Gpu:
    gpu = architectures[raw["architecture"]]
    return replace(
        gpu,
        name=name,
        kind=raw.get("kind", gpu.kind),
        units=raw["units"],
        bandwidth=raw["bandwidth"],
        f32=raw["f32"],
        rates=raw.get("rates", {}),
        devices=(raw["device"],),
    )
