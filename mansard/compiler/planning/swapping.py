"""The steps that load and evict the programs of a device whose memory does not hold them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mansard.compiler.planning.inputs import KernelRef, SwappedDispatches
from mansard.compiler.planning.queues import Queues
from mansard.ir.dispatch import Dispatch
from mansard.placement.swapping import load_points
from mansard.plan.plan import DeviceProgram, EvictStep, LoadStep


class Swapping:
    """Adds the loads and evictions of one device to its queue: a load as soon as those evicted before it
    leave room, so that it overlaps with what runs then."""

    def __init__(
        self,
        device: int,
        swapped: SwappedDispatches,
        dispatches: Sequence[Dispatch],
        kernels: Mapping[Dispatch, KernelRef],
        queues: Queues,
    ) -> None:
        self.device, self.swapped, self.kernels, self.queues = device, swapped, kernels, queues
        self.order = [dispatch for dispatch in dispatches if dispatch in swapped.bytes]
        self.points = load_points([swapped.bytes[dispatch] for dispatch in self.order], swapped.area)
        self.evicted, self.loaded = 0, 0

    def load(self) -> None:
        """Add the loads for which there is room."""
        while self.loaded < len(self.order) and self.points[self.loaded] <= self.evicted:
            dispatch = self.order[self.loaded]
            size, executable = self.swapped.bytes[dispatch], self.kernels[dispatch].executable
            self.queues.add(self.device, LoadStep(executable, size, f"load {dispatch.name}"), ())
            self.loaded += 1

    def after(self, dispatch: Dispatch) -> None:
        """What follows the step of a dispatch."""
        if dispatch in self.swapped.bytes:
            step = EvictStep(self.kernels[dispatch].executable, f"evict {dispatch.name}")
            self.queues.add(self.device, step, ())
            self.evicted += 1
            self.load()

    def marked(self, program: DeviceProgram) -> DeviceProgram:
        """What the device runs, with its area and what takes turns there."""
        executables = sorted({self.kernels[dispatch].executable for dispatch in self.order})
        return dataclasses.replace(program, area_bytes=self.swapped.area, swapped=tuple(executables))
