"""What a plan is built from beside the dispatch graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch
from mansard.plan.plan import ExecutableRef


@dataclass(frozen=True)
class KernelRef:
    """Where a dispatch's kernel is, and how it is launched."""

    executable: int
    entry: str
    params: tuple[DimLike, ...]
    grid: tuple[DimLike, DimLike, DimLike]
    offsets: tuple[int, ...] = ()
    """Bytes of the dispatch's operands, inputs and then outputs, before what the kernel is bound to; empty
    where it is bound to all of them."""


@dataclass(frozen=True)
class SwappedDispatches:
    """Dispatches of a device whose programs take turns in ``area`` bytes of its memory, with their bytes."""

    area: int
    bytes: Mapping[Dispatch, int]


@dataclass(frozen=True)
class DeviceTarget:
    """What the plan records of a device slot."""

    name: str
    driver: str
    target: str
    executables: tuple[ExecutableRef, ...]
    product_names: tuple[str, ...] = ()
    late_binding: bool = False
