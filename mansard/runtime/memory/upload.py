"""Host bytes to a buffer: written by the host where it can see the buffer, else through staging buffers."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.hal import (
    Buffer,
    BufferRef,
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


def upload(
    device: Device, target: Buffer, parts: Sequence[tuple[int, Bytes]], first: int, total: int
) -> None:
    """Copy host bytes to their offsets in a buffer, all within ``first`` to ``first + total``.

    The device fills a buffer that is not host-visible, by way of two staging buffers. Blocks until done.
    """
    if total == 0:
        return
    if target.host_pointer is not None:
        _write(target.view(), parts, 0, target.size)
        return
    size = min(STAGING_BYTES, total)
    loans = [device.pool.alloca(size, MemoryKind.SHARED, "staging") for _ in range(2)]
    for point in (point for loan in loans for point in loan.wait):
        point.wait()  # earlier users must be done before the host writes
    staging = [loan.buffer for loan in loans]
    semaphore = Semaphore("weights upload")
    recorded = []
    for count, start in enumerate(range(first, first + total, size)):
        if count >= 2:
            Point(semaphore, count - 1).wait()  # until the copy that last used this half is done
        half, end = staging[count % 2], min(start + size, first + total)
        _write(half.view(), parts, start, end)
        copy = CopyCommand(BufferRef(half), BufferRef(target, start), end - start, "weights")
        commands = device.record([copy], queue=QueueKind.TRANSFER)
        recorded.append(commands)
        before = (Point(semaphore, count),) if count else ()
        device.submit([Submission(commands, before, (Point(semaphore, count + 1),))])
    Point(semaphore, len(recorded)).wait()
    for commands in recorded:
        commands.close()
    for half in staging:
        device.pool.dealloca(half)


def _write(view: Bytes, parts: Sequence[tuple[int, Bytes]], start: int, end: int) -> None:
    """Write the bytes of parts within the range ``start`` to ``end`` to a view of that range."""
    copies = []
    for offset, data in parts:
        low, high = max(offset, start), min(offset + data.size, end)
        if low < high:
            copies.append(HostCopy(data[low - offset : high - offset], view[low - start : high - start]))
    copy_all(copies)
