"""What a driver brings to the suite, and what the suite's tests are written with."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from mansard.errors import ExecutionError, MansardError
from mansard.hal import (
    BindingSlot,
    Buffer,
    BufferRef,
    Command,
    CommandBuffer,
    Device,
    DispatchCommand,
    Executable,
    ExecutableSpec,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
)
from mansard.hal.threaded import ThreadedDevice

WAIT = 20.0
"""Seconds after which a wait in a test counts as a hang."""

KERNELS = {
    "fill_index": "1 buffer; n, a, b: out[i] = i * a + b as i32 for i < n",
    "add": "3 buffers; n: c[i] = a[i] + b[i] as f32 for i < n; c may be a",
    "spin": "1 buffer; n: n steps of state = state * 1664525 + 1013904223 (u32, from 0), stored in out[0]",
    "wide": "1 buffer; 20 params: out[0] = their sum as i64",
}
"""The kernels an adapter provides."""

_Test = TypeVar("_Test", bound=Callable[..., object])


class Adapter(abc.ABC):
    """A driver's side of the suite."""

    spin_grid = (200, 1, 1)
    """Workgroups of ``spin`` that keep the device busy for some tens of milliseconds ..."""
    spin_steps = 60_000
    """... with these many steps each."""
    variation = "as it is"
    """How the device differs from what it is, in words."""

    @abc.abstractmethod
    def open(self) -> Device:
        """A new device; the suite closes it."""

    def title(self) -> str:
        """The driver and the device, in words."""
        return type(self).__name__.removesuffix("Adapter").lower()

    @abc.abstractmethod
    def spec(self, name: str) -> ExecutableSpec:
        """One of `KERNELS`, with one entry point of that name."""

    @abc.abstractmethod
    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        """The grid in which the kernel covers ``count`` elements."""

    def fail_next(self, device: Device) -> bool:
        """Let the next submission of the device fail with an ExecutionError; False when the driver cannot."""
        if not isinstance(device, ThreadedDevice):
            return False
        device.inject(error=ExecutionError(f"{device.info.id}: injected failure"))
        return True

    def hang_next(self, device: Device) -> bool:
        """Let the next submission of the device hang until `let_go`; False when the driver cannot."""
        if not isinstance(device, ThreadedDevice):
            return False
        device.inject(hang=True)
        return True

    def let_go(self, device: Device) -> None:
        """Let a hanging submission end well, and take back a fault that has not struck."""
        if isinstance(device, ThreadedDevice):
            device.release()

    def lose(self, device: Device) -> type[MansardError]:
        """Make the device fail all that waits for it, for good; returns the class of the errors."""
        device.close()
        return ExecutionError


def computes(test: _Test) -> _Test:
    """Mark a test that looks at results."""
    return pytest.mark.usefixtures("computing_device")(test)  # type: ignore[no-any-return]


class Workbench:
    """A device with the few verbs tests are made of."""

    def __init__(self, adapter: Adapter, device: Device) -> None:
        self.adapter = adapter
        self.device = device
        self._loaded: dict[str, Executable] = {}

    def executable(self, name: str) -> Executable:
        """One of the kernels, loaded once."""
        if name not in self._loaded:
            self._loaded[name] = self.device.load(self.adapter.spec(name))
        return self._loaded[name]

    def shared(self, data: npt.NDArray[np.generic]) -> Buffer:
        """A host-visible buffer holding ``data``."""
        buffer = self.device.allocate(data.nbytes, MemoryKind.SHARED)
        buffer.view()[:] = data.reshape(-1).view(np.uint8)
        return buffer

    def dispatch(
        self,
        name: str,
        buffers: Sequence[Buffer | BufferRef | BindingSlot],
        params: Sequence[int],
        count: int,
        label: str = "",
    ) -> DispatchCommand:
        """A kernel over ``count`` elements."""
        refs = tuple(b if isinstance(b, BufferRef) else BufferRef(b) for b in buffers)
        grid = self.adapter.grid(name, count)
        return DispatchCommand(self.executable(name), name, refs, tuple(params), grid, label)

    def add(self, a: Buffer, b: Buffer, c: Buffer, count: int) -> DispatchCommand:
        """c = a + b."""
        return self.dispatch("add", (a, b, c), (count,), count)

    def busy(self) -> CommandBuffer:
        """Work that takes some tens of milliseconds."""
        out = self.device.allocate(4, MemoryKind.SHARED)
        adapter = self.adapter
        spin = DispatchCommand(
            self.executable("spin"), "spin", (BufferRef(out),), (adapter.spin_steps,), adapter.spin_grid
        )
        return self.device.record([spin])

    def empty(self) -> CommandBuffer:
        """A recording without commands."""
        return self.device.record([])

    def run(self, *commands: Command) -> CommandBuffer:
        """Record, submit, wait; profiled."""
        recorded = self.device.record(commands, profile=True)
        self.replay(recorded)
        return recorded

    def replay(self, recorded: CommandBuffer, **options: object) -> None:
        """Submit once more and wait."""
        done = Point(Semaphore("replay"), 1)
        self.device.submit([Submission(recorded, signal=(done,), **options)])  # type: ignore[arg-type]
        done.wait(WAIT)


class Suite:
    """Fixtures of the suite's classes."""

    adapter: Adapter

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls) -> Iterator[Workbench]:
        """The workbench of the class, with a device of its own."""
        device = cls.adapter.open()
        yield Workbench(cls.adapter, device)
        device.close()

    @pytest.fixture
    def device(self, bench: Workbench) -> Device:
        return bench.device

    @pytest.fixture
    def fresh(self) -> Iterator[Workbench]:
        """A workbench for a test that closes or breaks its device."""
        device = self.adapter.open()
        yield Workbench(self.adapter, device)
        device.close()

    @pytest.fixture
    def computing_device(self, device: Device) -> None:
        if device.capabilities.simulated:
            pytest.skip(f"{device.info.id} does not compute: capabilities.simulated is set")
