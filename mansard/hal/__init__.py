"""Hardware abstraction: contracts every driver fulfils, and nothing that knows a device.

The one synchronisation primitive is the timeline semaphore (`Semaphore`, `Point`). A driver is
found by entry point in the group ``mansard.drivers`` (see `registry`).
"""

from mansard.hal.buffer import Buffer, MemoryKind
from mansard.hal.commands import Barrier, BindingSlot, BufferRef, Command, Copy, Dispatch, Fill
from mansard.hal.device import (
    Batch,
    Capabilities,
    CommandBuffer,
    Device,
    DeviceInfo,
    Driver,
    Launcher,
    MemoryHeap,
    ProfileRow,
    QueueKind,
)
from mansard.hal.executable import EntryPoint, Executable, ExecutableSpec
from mansard.hal.pool import BufferPool, Loan
from mansard.hal.semaphore import Point, Semaphore

__all__ = [
    "Barrier",
    "Batch",
    "BindingSlot",
    "Buffer",
    "BufferPool",
    "BufferRef",
    "Capabilities",
    "Command",
    "CommandBuffer",
    "Copy",
    "Device",
    "DeviceInfo",
    "Dispatch",
    "Driver",
    "EntryPoint",
    "Executable",
    "ExecutableSpec",
    "Fill",
    "Launcher",
    "Loan",
    "MemoryHeap",
    "MemoryKind",
    "Point",
    "ProfileRow",
    "QueueKind",
    "Semaphore",
]
