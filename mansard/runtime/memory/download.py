"""Bytes of a buffer to the host: read where the host can see the buffer, else through a staging buffer."""

from __future__ import annotations

import numpy as np

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
from mansard.runtime.memory.host_copy import Bytes
from mansard.runtime.memory.upload import STAGING_BYTES


def download(device: Device, source: Buffer, offset: int, size: int) -> Bytes:
    """The bytes of a buffer from an offset on, in new memory. Blocks until they are there; nothing may be
    writing to them."""
    result = np.empty(size, np.uint8)
    if source.host_pointer is not None:
        result[:] = source.view()[offset : offset + size]
        return result
    loan = device.pool.alloca(min(STAGING_BYTES, size), MemoryKind.SHARED, "staging")
    for point in loan.wait:
        point.wait()
    semaphore = Semaphore("download")
    try:
        for count, start in enumerate(range(0, size, STAGING_BYTES), 1):
            part = min(STAGING_BYTES, size - start)
            copy = CopyCommand(BufferRef(source, offset + start), BufferRef(loan.buffer), part, "download")
            commands = device.record([copy], queue=QueueKind.TRANSFER)
            done = Point(semaphore, count)
            device.submit([Submission(commands, (), (done,))])
            done.wait()
            result[start : start + part] = loan.buffer.view()[:part]
            commands.close()
    finally:
        device.pool.dealloca(loan.buffer)
    return result
