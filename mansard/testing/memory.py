"""Buffers: sizes, alignment, sharing, running out."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from mansard.errors import DeviceError, OutOfMemoryError
from mansard.hal import HOST_DEVICE, BufferRef, CopyCommand, Device, MemoryKind, registry
from mansard.testing.adapter import Suite, Workbench, computes


def aligned_array(device: Device, count: int) -> np.ndarray:
    """int32 array whose address and bytes fit ``capabilities.import_alignment``."""
    alignment = max(4, device.capabilities.import_alignment)
    size = -(-4 * count // alignment) * alignment
    raw = np.zeros(size + alignment, dtype=np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size].view(np.int32)


class MemoryTests(Suite):
    """Contract of `Device.allocate`, `import_host` and `import_buffer`."""

    @pytest.mark.parametrize("kind", list(MemoryKind))
    @pytest.mark.parametrize("size", [1, 4, 255, 4096, 5_000_001])
    def test_allocation_has_its_size_and_alignment(self, device: Device, kind: MemoryKind, size: int) -> None:
        buffer = device.allocate(size, kind, label="test")
        assert buffer.size == size
        assert buffer.kind is kind
        assert buffer.address % 256 == 0
        assert buffer.address != 0
        buffer.close()
        buffer.close()

    def test_shared_memory_is_seen_by_the_host(self, device: Device) -> None:
        buffer = device.allocate(1000, MemoryKind.SHARED)
        view = buffer.view()
        assert view.shape == (1000,)
        assert view.dtype == np.uint8
        view[:] = np.arange(1000, dtype=np.uint8)
        np.testing.assert_array_equal(buffer.view(), np.arange(1000, dtype=np.uint8))

    def test_device_memory_is_seen_or_refused(self, device: Device) -> None:
        buffer = device.allocate(64, MemoryKind.DEVICE)
        if buffer.host_pointer is None:
            with pytest.raises(DeviceError, match="not visible to the host"):
                buffer.view()
        else:
            buffer.view()[:] = 7
            assert buffer.view().tolist() == [7] * 64

    def test_buffers_do_not_overlap(self, device: Device) -> None:
        buffers = [device.allocate(300, MemoryKind.SHARED) for _ in range(50)]
        for number, buffer in enumerate(buffers):
            buffer.view()[:] = number
        for number, buffer in enumerate(buffers):
            assert set(buffer.view().tolist()) == {number}

    def test_a_view_keeps_the_memory(self, device: Device) -> None:
        view = device.allocate(1 << 16, MemoryKind.SHARED).view()
        gc.collect()
        others = [device.allocate(1 << 16, MemoryKind.SHARED) for _ in range(4)]
        for other in others:
            other.view()[:] = 1
        view[:] = 9
        assert all(set(other.view().tolist()) == {1} for other in others)

    def test_too_large_an_allocation_is_refused(self, device: Device) -> None:
        with pytest.raises(OutOfMemoryError, match=str(1 << 60)):
            device.allocate(1 << 60, MemoryKind.DEVICE)
        # The device goes on working.
        device.allocate(4096, MemoryKind.SHARED).view()[:] = 1

    @computes
    def test_host_memory_is_imported_without_a_copy(self, bench: Workbench) -> None:
        device, array = bench.device, aligned_array(bench.device, 1000)
        if not device.capabilities.import_host:
            with pytest.raises(DeviceError):
                device.import_host(array)
            return
        buffer = device.import_host(array)
        assert buffer.size == array.nbytes
        bench.run(bench.dispatch("fill_index", (buffer,), (1000, 2, 1), 1000))
        np.testing.assert_array_equal(array[:1000], np.arange(1000) * 2 + 1)

    def test_an_import_keeps_the_array(self, device: Device) -> None:
        if not device.capabilities.import_host:
            with pytest.raises(DeviceError):
                device.import_host(aligned_array(device, 16))
            return
        buffer = device.import_host(aligned_array(device, 1 << 16))
        gc.collect()
        others = [np.ones(1 << 16, dtype=np.int32) for _ in range(4)]
        buffer.view()[:] = 3
        assert all(other.min() == other.max() == 1 for other in others)

    @computes
    def test_memory_of_the_cpu_is_shared_or_refused(self, bench: Workbench) -> None:
        cpu = registry.open_device(HOST_DEVICE)
        theirs = cpu.allocate(4096, MemoryKind.SHARED)
        ours = bench.device.import_buffer(theirs)
        if ours is None:
            assert not bench.device.capabilities.import_host or not bench.device.capabilities.unified_memory
            return
        assert ours.size >= theirs.size
        bench.run(bench.dispatch("fill_index", (ours,), (1024, 1, 5), 1024))
        np.testing.assert_array_equal(theirs.view().view(np.int32), np.arange(1024) + 5)

    @computes
    def test_device_memory_keeps_data(self, bench: Workbench) -> None:
        device, data = bench.device, np.arange(5000, dtype=np.int32)
        source, middle = bench.shared(data), device.allocate(data.nbytes, MemoryKind.DEVICE)
        target = device.allocate(data.nbytes, MemoryKind.SHARED)
        bench.run(CopyCommand(BufferRef(source), BufferRef(middle), data.nbytes))
        bench.run(CopyCommand(BufferRef(middle), BufferRef(target), data.nbytes))
        np.testing.assert_array_equal(target.view().view(np.int32), data)
