"""The worker pool, command lists and memory of the native core."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mansard.errors import DeviceError, OutOfMemoryError
from mansard.hal import native

PAGE = mmap.PAGESIZE
# A function that returns at once, by architecture.
RETURN = {"x86_64": b"\xc3", "aarch64": b"\xc0\x03\x5f\xd6", "riscv64": b"\x67\x80\x00\x00"}
RET = RETURN[platform.machine()]


def kernel_type() -> Any:
    """The type of a CPU kernel."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 1, 1), (2, 1, 1), (7, 3, 5), (1000, 1, 1), (10, 10, 10)])
def test_pool_covers_the_grid_once(threads: int, grid: tuple[int, int, int]) -> None:
    spans: list[tuple[int, int]] = []
    kernel = kernel_type()(lambda _table, _grid, begin, end: spans.append((begin, end)))
    pool = native.check_handle(native.core.mn_pool_create(threads))
    native.core.mn_pool_run(
        pool, ctypes.cast(kernel, ctypes.c_void_p), (ctypes.c_uint64 * 1)(), (ctypes.c_uint32 * 3)(*grid)
    )
    native.core.mn_pool_release(pool)
    covered = sorted(spans)
    total = grid[0] * grid[1] * grid[2]
    assert [i for begin, end in covered for i in range(begin, end)] == list(range(total))
    assert len(covered) <= 5 * threads


def test_a_pool_needs_a_thread() -> None:
    assert native.core.mn_pool_create(0) is None
    with pytest.raises(DeviceError, match="not 0"):
        native.check(native.INVALID)


@pytest.mark.parametrize(("setting", "expected"), [("3", 3), ("1", 1), ("", None), ("0", 0), ("two", 0)])
def test_number_of_threads(setting: str, expected: int | None) -> None:
    code = "from mansard.hal import native; print(native.core.mn_default_threads(), native.last_message())"
    environment = {**os.environ, "MANSARD_NUM_THREADS": setting}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    count, _, message = run.stdout.strip().partition(" ")
    assert int(count) == (len(os.sched_getaffinity(0)) if expected is None else expected)
    assert ("MANSARD_NUM_THREADS" in message) == (expected == 0)


def test_lists_are_checked() -> None:
    commands = (native.CpuCommandStruct * 1)(native.CpuCommandStruct(op=native.CPU_COPY, table=1, size=8))
    words = (ctypes.c_uint64 * 2)()
    assert native.core.mn_cpu_list_create(commands, 1, words, 2, None, 0, False) is None
    assert "past the 2 words" in native.last_message()
    commands[0].op = native.CPU_DISPATCH
    assert native.core.mn_cpu_list_create(commands, 1, words, 2, None, 0, False) is None
    assert "no kernel" in native.last_message()
    reloc = (native.CpuRelocStruct * 1)(native.CpuRelocStruct(2, 0, 0))
    assert native.core.mn_cpu_list_create(commands, 0, words, 2, reloc, 1, False) is None
    assert "relocation 0" in native.last_message()


def map_memory(size: int) -> int:
    address = ctypes.c_uint64()
    native.check(native.core.mn_memory_map(size, ctypes.byref(address)))
    return address.value


@pytest.mark.parametrize("size", [1, PAGE, PAGE + 1, 3 << 20])
def test_memory_is_aligned_zeroed_and_writable(size: int) -> None:
    address = map_memory(size)
    assert address % (PAGE if size < 1 << 21 else 1 << 21) == 0
    data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    assert not data.any()
    data[:] = 1
    assert data.sum() == size
    native.core.mn_memory_unmap(address, size)


@pytest.mark.parametrize("size", [0, 1 << 62, 2**64 - 1, 2**64 - 2**21])
def test_memory_that_cannot_be_had(size: int) -> None:
    with pytest.raises(OutOfMemoryError, match=str(size)):
        map_memory(size)


def mappings() -> str:
    return Path("/proc/self/maps").read_text(encoding="utf-8")


def permissions(address: int) -> str:
    line = next(line for line in mappings().splitlines() if line.startswith(f"{address:x}-"))
    return line.split()[1]


def test_code_is_mapped_executable_and_not_writable() -> None:
    address = ctypes.c_uint64()
    native.check(native.core.mn_code_map(RET, len(RET), ctypes.byref(address)))
    assert permissions(address.value) == "r-xp"
    kernel_type()(address.value)(None, None, 0, 0)
    native.core.mn_code_unmap(address.value, len(RET))
    assert f"{address.value:x}-" not in mappings()


def test_code_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(PAGE) + RET)
    address = ctypes.c_uint64()
    with path.open("rb") as file:
        native.check(native.core.mn_code_map_file(file.fileno(), PAGE, len(RET), ctypes.byref(address)))
        with pytest.raises(DeviceError, match="not a multiple of the page size"):
            native.check(native.core.mn_code_map_file(file.fileno(), 16, 1, ctypes.byref(address)))
    assert permissions(address.value) == "r-xp"
    kernel_type()(address.value)(None, None, 0, 0)
    native.core.mn_code_unmap(address.value, len(RET))
