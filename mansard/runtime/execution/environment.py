"""What the contexts of a session share: the plan on its devices, weights, states and pools of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.plan.claims import Claims
from mansard.plan.plan import Plan
from mansard.plan.stores import Layout
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.constants import Constants
from mansard.runtime.memory.output_pool import OutputPool
from mansard.runtime.memory.states import States
from mansard.runtime.memory.workspace import Workspaces


@dataclass(frozen=True)
class ExecutionEnvironment:
    """What the contexts of a session share."""

    plan: Plan
    claims: Claims
    """What the plan has to satisfy for the sizes of a call."""
    slots: Sequence[BoundSlot]
    layout: Layout
    constants: Constants
    states: States
    workspaces: Workspaces
    output_pool: OutputPool
