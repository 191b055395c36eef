"""Schedules that leave parameters to choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Scheduled

NestSchedule = Callable[[Nest, KernelTarget, str], Scheduled]
"""Makes the kernel of a loop nest for a target, under a name."""


@dataclass(frozen=True)
class Tunable:
    """A schedule with parameters: those to try for a nest (the default first), and the kernel for given ones
    (None: for the default)."""

    candidates: Callable[[Nest, KernelTarget], Sequence[Parameters]]
    schedule: Callable[[Nest, KernelTarget, str, Parameters | None], Scheduled]
