"""Host bytes to a buffer: written by the host where it can see the buffer, else through staging buffers."""

from __future__ import annotations

from collections.abc import Iterable

from mansard.hal import (
    Buffer,
    BufferRef,
    CommandBuffer,
    CopyCommand,
    Device,
    MemoryKind,
    Point,
    QueueKind,
    Semaphore,
    Submission,
)
from mansard.runtime.memory.host_copy import Bytes, HostCopy, copy_all

STAGING_BYTES = 32 << 20


def upload(device: Device, target: Buffer, parts: Iterable[tuple[int, Bytes]]) -> None:
    """Copy host bytes to their offsets in a buffer. Blocks until done.

    Parts are in order of their offsets and do not overlap; each is asked for when it is its turn. The device
    fills a buffer that is not host-visible, by way of two staging buffers, while the host fills the other
    one.
    """
    if target.host_pointer is not None:
        view = target.view()
        for offset, data in parts:
            copy_all([HostCopy(data, view[offset : offset + data.size])])
        return
    staged = _Staged(device, target)
    try:
        for offset, data in parts:
            staged.write(offset, data)
        staged.flush()
    finally:
        staged.close()


class _Staged:
    """Fills a buffer by way of two halves of staging memory."""

    def __init__(self, device: Device, target: Buffer) -> None:
        self._device, self._target = device, target
        self._size = min(STAGING_BYTES, target.size)
        loans = [device.pool.alloca(self._size, MemoryKind.SHARED, "staging") for _ in range(2)]
        for point in (point for loan in loans for point in loan.wait):
            point.wait()  # earlier users must be done before the host writes
        self._halves = [loan.buffer for loan in loans]
        self._semaphore = Semaphore("weights upload")
        self._recorded: list[CommandBuffer] = []
        self._copies: list[HostCopy] = []
        self._start = self._end = 0
        """The range of the target that the current half holds."""

    def write(self, offset: int, data: Bytes) -> None:
        """Copy bytes to a place behind all earlier ones."""
        done = 0
        while done < data.size:
            if offset + done >= self._start + self._size or not self._copies:
                self.flush()
                self._start = offset + done
            place = offset + done - self._start
            count = min(self._size - place, data.size - done)
            half = self._halves[len(self._recorded) % 2]
            self._copies.append(HostCopy(data[done : done + count], half.view()[place : place + count]))
            done += count
            self._end = offset + done

    def flush(self) -> None:
        """Hand the current half to the device, and turn to the other one."""
        if not self._copies:
            return
        count = len(self._recorded)
        if count >= 2:
            Point(self._semaphore, count - 1).wait()  # until the copy that last used this half is done
        copy_all(self._copies)
        self._copies = []
        half, size = self._halves[count % 2], self._end - self._start
        copy = CopyCommand(BufferRef(half), BufferRef(self._target, self._start), size, "weights")
        commands = self._device.record([copy], queue=QueueKind.TRANSFER)
        self._recorded.append(commands)
        before = (Point(self._semaphore, count),) if count else ()
        self._device.submit([Submission(commands, before, (Point(self._semaphore, count + 1),))])

    def close(self) -> None:
        """Wait for the device, and return the staging memory."""
        Point(self._semaphore, len(self._recorded)).wait()
        for commands in self._recorded:
            commands.close()
        for half in self._halves:
            self._device.pool.dealloca(half)
