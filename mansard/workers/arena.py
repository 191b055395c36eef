"""Values that calls pass between processes: plain data as JSON, arrays and bytes in memory that both map.

Runs in the child too, on whatever Python and NumPy its environment has; NumPy is needed for arrays alone.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import Any

_ALIGNMENT = 64


class Arena:
    """Shared memory behind a descriptor, which grows as values need it. One side writes at a time."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory: mmap.mmap | None = None
        self._end = 0

    @property
    def end(self) -> int:
        """Bytes that are written."""
        return self._end

    def resume(self, end: int) -> None:
        """Write behind so many bytes: those that the other side wrote, or none."""
        self._end = end

    def encode(self, value: Any) -> Any:
        """A value as what JSON can say, its arrays and bytes copied into the arena.

        Numbers, texts, lists, tuples, dicts, bytes and NumPy arrays; raises TypeError for others.
        """
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {"bytes": [self._put(memoryview(value).cast("B")), len(memoryview(value).cast("B"))]}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [self.encode(part) for part in value]}
        if isinstance(value, dict):
            return {"dict": [[self.encode(key), self.encode(part)] for key, part in value.items()]}
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
            data = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
            return {"array": [_dtype_text(value.dtype), list(value.shape), self._put(memoryview(data))]}
        if numpy is not None and isinstance(value, numpy.generic):
            return self.encode(value.item())
        raise TypeError(f"a {type(value).__name__} cannot be passed between processes")

    def decode(self, coded: Any, copy: bool) -> Any:
        """The value again. Without ``copy``, arrays and bytes are views that the next call overwrites."""
        if not isinstance(coded, dict):
            return coded
        ((kind, data),) = coded.items()
        if kind == "list":
            return [self.decode(part, copy) for part in data]
        if kind == "tuple":
            return tuple(self.decode(part, copy) for part in data)
        if kind == "dict":
            return {self.decode(key, copy): self.decode(part, copy) for key, part in data}
        if kind == "bytes":
            offset, size = data
            view = memoryview(self._mapped(offset + size))[offset : offset + size]
            return bytes(view) if copy else view
        dtype, shape, offset = data
        return self._array(dtype, shape, offset, copy)

    def _array(self, dtype_text: str, shape: list[int], offset: int, copy: bool) -> Any:
        import numpy as np

        try:
            dtype = np.dtype(dtype_text)
        except TypeError:
            import ml_dtypes

            dtype = np.dtype(getattr(ml_dtypes, dtype_text))
        count = 1
        for extent in shape:
            count *= extent
        memory = self._mapped(offset + count * dtype.itemsize)
        array = np.frombuffer(memory, np.uint8, count * dtype.itemsize, offset).view(dtype).reshape(shape)
        return array.copy() if copy else array

    def _put(self, data: memoryview) -> int:
        start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        self._end = start + len(data)
        self._mapped(self._end)[start : self._end] = data
        return start

    def _mapped(self, size: int) -> mmap.mmap:
        """The memory, at least so many bytes of it; views of a smaller mapping stay valid."""
        if self._memory is None or len(self._memory) < size:
            grown = max(size, 2 * os.fstat(self.descriptor).st_size, mmap.PAGESIZE)
            present = os.fstat(self.descriptor).st_size
            if present < size:
                os.ftruncate(self.descriptor, grown)
                present = grown
            self._memory = mmap.mmap(self.descriptor, present)
        return self._memory

    def close(self) -> None:
        """Close the descriptor; the memory goes with the last view of it."""
        self._memory = None
        os.close(self.descriptor)


def _dtype_text(dtype: Any) -> str:
    return str(dtype.name if dtype.kind == "V" else dtype.str)
