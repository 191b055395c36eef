"""Target texts of Vulkan: ``vulkan:1.3+float16``, ``vulkan:h200+abi=all``,
``vulkan:valhall4+units=7,-float16``."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mansard.drivers.vulkan.instance.features import (
    NAMED_FEATURES,
    NAN_PRESERVE,
    PTX_SM_90A,
    SUBGROUP_OPERATIONS,
)
from mansard.drivers.vulkan.instance.limits import UNLIMITED
from mansard.drivers.vulkan.shaders.abi import ADDRESSES, BDA, DESCRIPTORS, FORMATS
from mansard.errors import CodegenError
from mansard.hal.device import DeviceInfo
from mansard.targets.gpus import Gpu, known_gpus, near_names, product_of

VERSION = "1.3"
BASELINE = frozenset(
    {"int64", "storage16", "storage8", "buffer_device_address", "scalar_block_layout", "subgroup_basic"}
)
"""What every Vulkan 1.3 device that Mansard accepts has, so that such code runs on all of them."""
LIMITS: Mapping[str, int] = {
    "workgroup": 128,  # the limit any device must reach
    "shared": 16 * 1024,  # likewise
    "resident": 1 << 12,  # a phone's GPU holds some 8,000 invocations
    "units": 4,
    "grid": 65535,  # workgroups per axis: the minimum of maxComputeWorkGroupCount
    "loops": 0,  # loop iterations of an invocation that the driver runs; 0: all of them
}
SUBGROUP = (1, 128)
"""Sizes of subgroups that Vulkan allows."""
MAX_INVOCATIONS = 256
"""Larger workgroups bring nothing to the kernels there are, and fit fewer to a core."""
RESIDENT = {"software": 1 << 6, "integrated": 1 << 12, "discrete": 1 << 16, "virtual": 1 << 16}
"""Invocations that keep a kind of GPU busy; a discrete one holds 50,000 to 270,000 at a time."""
UNITS = {"integrated": 8, "discrete": 64, "virtual": 64}
"""Cores of a kind of GPU, where neither the driver nor the table of products knows better."""
_USED = 4
"""Of the invocations that cores hold, this part is enough: kernels with many registers leave half of the
places empty, and half of the others hides what memory takes."""

_MATRIX = re.compile(r"matrix_\d+x\d+x\d+_[a-z0-9]+_[a-z0-9]+")
_NAMES = {*NAMED_FEATURES, *SUBGROUP_OPERATIONS, *NAN_PRESERVE, PTX_SM_90A}


@dataclass(frozen=True)
class Target:
    """What a text says. ``str()`` gives the shortest text that says the same."""

    base: str
    """``1.3``, or the name of a GPU."""
    features: frozenset[str]
    limits: Mapping[str, int]
    subgroup: tuple[int, int]
    asked_abi: str = BDA
    """How kernels shall receive their buffers (`mansard.drivers.vulkan.shaders.abi`)."""

    @property
    def abi(self) -> str:
        """``bda``, ``descriptors`` or ``all``: what takes no addresses gets descriptors without being
        asked."""
        addresses = self.features.issuperset(ADDRESSES)
        return DESCRIPTORS if self.asked_abi == BDA and not addresses else self.asked_abi

    @property
    def gpu(self) -> Gpu | None:
        """The GPU named; None for ``1.3``."""
        return known_gpus().get(self.base)

    def __str__(self) -> str:
        plain = _base(self.base)
        parts = [f"+{name}" for name in sorted(self.features - plain.features)]
        parts += [f"+{name}={value}" for name, value in self.limits.items() if plain.limits[name] != value]
        if self.subgroup != plain.subgroup:
            lower, upper = self.subgroup
            parts.append(f"+subgroup={lower}" if lower == upper else f"+subgroup={lower}..{upper}")
        if self.asked_abi != BDA:
            parts.append(f"+abi={self.asked_abi}")
        parts += [f",-{name}" for name in sorted(plain.features - self.features)]
        return f"vulkan:{self.base}" + "".join(parts)


@functools.cache
def parse(text: str) -> Target:
    """Read a target text; raises CodegenError naming what is known or near."""
    driver, _, rest = text.partition(":")
    base, *additions = re.split(r"[+,]+", (rest or VERSION).lower())
    if driver != "vulkan" or (base != VERSION and base not in known_gpus()):
        raise CodegenError(f"unknown Vulkan target {text!r}{_hint(base)}")
    plain = _base(base)
    features, limits, subgroup, abi = set(plain.features), dict(plain.limits), plain.subgroup, BDA
    for addition in additions:
        name, _, value = addition.partition("=")
        size = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", value)
        if name in limits and value.isdigit():
            limits[name] = int(value)
        elif name == "subgroup" and size is not None:
            subgroup = int(size[1]), int(size[2] or size[1])
        elif name == "abi":
            if value not in FORMATS:
                raise CodegenError(f"no Vulkan dispatch ABI {value!r}; known: {', '.join(FORMATS)}")
            abi = value
        elif not value and is_feature(name.removeprefix("-")):
            (features.discard if name.startswith("-") else features.add)(name.removeprefix("-"))
        else:
            known = ", ".join(
                sorted(_NAMES | {f"{limit}=N" for limit in (*LIMITS, "subgroup")} | {"abi=ABI"})
            )
            raise CodegenError(f"unknown feature {addition!r} in target {text!r}; known: {known}")
    return Target(base, frozenset(features), limits, subgroup, abi)


def of_device(device: DeviceInfo) -> Target:
    """The target a device makes for: what it reports, and what is known of its product or kind."""
    limits, gpu = device.limits, product_of(device)
    units = (
        limits.get("compute_units") or (gpu.units if gpu else 0) or UNITS.get(device.kind, LIMITS["units"])
    )
    held = limits.get("resident_invocations") or (units * gpu.held if gpu else 0)
    return Target(
        base=VERSION,
        features=frozenset(name for name, present in device.features.items() if present and is_feature(name)),
        limits={
            "workgroup": min(limits.get("workgroup_invocations", LIMITS["workgroup"]), MAX_INVOCATIONS),
            "shared": limits.get("shared_memory", LIMITS["shared"]),
            "resident": held // _USED or RESIDENT.get(device.kind, LIMITS["resident"]),
            "units": units,
            "grid": LIMITS["grid"],
            "loops": loops if (loops := limits.get("loop_iterations", 0)) < UNLIMITED else 0,
        },
        subgroup=(
            limits.get("min_subgroup_size") or SUBGROUP[0],
            limits.get("max_subgroup_size") or SUBGROUP[1],
        ),
    )


def is_feature(name: str) -> bool:
    """Whether a target text may name it."""
    return name in _NAMES or _MATRIX.fullmatch(name) is not None


def _base(base: str) -> Target:
    gpu = known_gpus().get(base)
    if gpu is None:
        return Target(base, BASELINE, LIMITS, SUBGROUP)
    units = gpu.units or UNITS.get(gpu.kind, LIMITS["units"])
    limits = {
        "workgroup": min(gpu.workgroup, MAX_INVOCATIONS),
        "shared": gpu.shared,
        "resident": units * gpu.held // _USED,
        "units": units,
        "grid": LIMITS["grid"],
        "loops": LIMITS["loops"],
    }
    return Target(base, BASELINE | gpu.features, limits, gpu.subgroup)


def _hint(base: str) -> str:
    near = near_names(base)
    if near:
        return f"; did you mean {', '.join(f'vulkan:{name}' for name in near)}?"
    names = sorted({gpu.architecture for gpu in known_gpus().values()})
    return f"; known: vulkan:{VERSION}, architectures ({', '.join(names)}) and products of them"
