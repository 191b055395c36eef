"""Hardware abstraction: contracts every driver fulfils, and nothing that knows a device.

The one synchronisation primitive is the timeline semaphore (`Semaphore`, `Point`). A driver is
found by entry point in the group ``mansard.drivers`` (see `registry`).
"""

from mansard.hal.buffer import Buffer, MemoryKind
from mansard.hal.commands import (
    BarrierCommand,
    BindingSlot,
    BufferRef,
    Command,
    CopyCommand,
    DispatchCommand,
    EvictCommand,
    FillCommand,
    LoadCommand,
)
from mansard.hal.device import (
    HOST_DEVICE,
    Capabilities,
    CommandBuffer,
    Device,
    DeviceInfo,
    Driver,
    Launcher,
    MemoryHeap,
    ProfileRow,
    QueueKind,
    Submission,
)
from mansard.hal.executable import EntryPoint, Executable, ExecutableSpec
from mansard.hal.pool import BufferPool, Loan
from mansard.hal.semaphore import Point, Semaphore
from mansard.hal.swapping import ProgramArea, SwappedExecutable

__all__ = [
    "HOST_DEVICE",
    "BarrierCommand",
    "BindingSlot",
    "Buffer",
    "BufferPool",
    "BufferRef",
    "Capabilities",
    "Command",
    "CommandBuffer",
    "CopyCommand",
    "Device",
    "DeviceInfo",
    "DispatchCommand",
    "Driver",
    "EntryPoint",
    "EvictCommand",
    "Executable",
    "ExecutableSpec",
    "FillCommand",
    "Launcher",
    "LoadCommand",
    "Loan",
    "MemoryHeap",
    "MemoryKind",
    "Point",
    "ProfileRow",
    "ProgramArea",
    "QueueKind",
    "Semaphore",
    "Submission",
    "SwappedExecutable",
]
