"""From placed dispatches to a plan: queues, segments, barriers, transfers, lifetimes."""

from mansard.schedule.build import KernelRef, build_plan

__all__ = ["KernelRef", "build_plan"]
