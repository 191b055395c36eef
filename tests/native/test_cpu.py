"""The worker pool, command lists and memory of the native core."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.resident_memory import anonymous_memory

from mansard.errors import DeviceError, OutOfMemoryError
from mansard.hal import core_abi, native

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
PAGE = mmap.PAGESIZE
# A function that returns at once, by architecture.
RETURN = {"x86_64": b"\xc3", "aarch64": b"\xc0\x03\x5f\xd6", "riscv64": b"\x67\x80\x00\x00"}
RET = RETURN[platform.machine()]


def kernel_type() -> Any:
    """The type of a CPU kernel."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def cpu_queue(threads: int, cpus: tuple[int, ...] | None = None) -> int | None:
    """The handle of a CPU queue; None on failure."""
    bound = (ctypes.c_int * len(cpus))(*cpus) if cpus else None
    options = core_abi.CpuOptionsStruct(threads=threads, cpus=bound, spin_ns=20_000)
    return native.core.mn_cpu_queue_create(b"test", ctypes.byref(options))


def run_list(queue: int, commands: list[core_abi.CpuCommandStruct], runs: int) -> None:
    """Run a list of commands without words several times, each waited for."""
    many = (core_abi.CpuCommandStruct * len(commands))(*commands)
    recorded = native.check_owned(
        native.core.mn_cpu_list_create(many, len(commands), None, 0, None, 0, False)
    )
    timeline = native.check_owned(native.core.mn_timeline_create(b"test", 0))
    for value in range(1, runs + 1):
        signal = core_abi.PointStruct(timeline.handle, value)
        submission = core_abi.SubmissionDescStruct(
            signals=ctypes.pointer(signal), signal_count=1, work=recorded.handle
        )
        native.check(native.core.mn_queue_submit(queue, ctypes.byref(submission), 1))
        native.check(native.core.mn_timeline_wait(timeline, value, 60 * 10**9, None))


def dispatch(kernel: Any, grid: tuple[int, int, int]) -> core_abi.CpuCommandStruct:
    address = ctypes.cast(kernel, ctypes.c_void_p).value
    return core_abi.CpuCommandStruct(kernel=address, op=core_abi.CPU_DISPATCH, grid=grid)


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 1, 1), (2, 1, 1), (7, 3, 5), (1000, 1, 1), (10, 10, 10)])
def test_threads_cover_the_grid_once(threads: int, grid: tuple[int, int, int]) -> None:
    spans: list[tuple[int, int]] = []
    kernel = kernel_type()(lambda _table, _grid, begin, end: spans.append((begin, end)))
    queue = native.check_handle(cpu_queue(threads))
    run_list(queue, [dispatch(kernel, grid)], runs=3)
    native.check(native.core.mn_queue_close(queue, core_abi.FOREVER))
    native.core.mn_queue_release(queue)
    total = grid[0] * grid[1] * grid[2]
    assert sorted(i for begin, end in spans for i in range(begin, end)) == sorted(3 * list(range(total)))


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_barriers_separate_what_runs_at_once(threads: int) -> None:
    """Each command notes what it sees done; only barriers promise anything."""
    done: list[str] = []
    kernels = [
        kernel_type()(lambda _t, _g, begin, end, name=name: done.extend([name] * (end - begin)))
        for name in "abc"
    ]
    barrier = core_abi.CpuCommandStruct(op=core_abi.CPU_BARRIER)
    a, b, c = (dispatch(kernel, (20, 1, 1)) for kernel in kernels)
    queue = native.check_handle(cpu_queue(threads))
    run_list(queue, [barrier, a, b, barrier, barrier, c, barrier], runs=5)
    native.check(native.core.mn_queue_close(queue, core_abi.FOREVER))
    native.core.mn_queue_release(queue)
    for run in range(5):
        part = done[60 * run : 60 * run + 60]
        assert (sorted(part[:40]), set(part[40:])) == ([*"a" * 20, *"b" * 20], {"c"})


def stack_bytes() -> int:
    """The calling thread's stack. The C library may give it that of a larger thread that ended."""
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_ulong
    attributes, size = ctypes.create_string_buffer(256), ctypes.c_size_t()
    assert libc.pthread_getattr_np(ctypes.c_ulong(libc.pthread_self()), attributes) == 0
    libc.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    libc.pthread_attr_destroy(attributes)
    return size.value


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("stack_kib", "may_help"), [(4096, True), (128, False)])
def test_a_thread_that_waits_computes_if_it_has_the_stack(
    threads: int, stack_kib: int, may_help: bool
) -> None:
    ran_on: set[int] = set()
    callers: list[int] = []
    stacks: list[int] = []
    kernel = kernel_type()(lambda _table, _grid, _begin, _end: ran_on.add(threading.get_native_id()))
    queue = native.check_handle(cpu_queue(threads))

    def use() -> None:
        callers.append(threading.get_native_id())
        stacks.append(stack_bytes())
        deadline = time.monotonic() + 20
        while not ran_on & set(callers) and time.monotonic() < deadline:
            run_list(queue, [dispatch(kernel, (1, 1, 1))], runs=20)
            if not may_help:
                break

    before = threading.stack_size(stack_kib << 10)
    try:
        thread = threading.Thread(target=use)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    native.check(native.core.mn_queue_close(queue, core_abi.FOREVER))
    native.core.mn_queue_release(queue)
    assert bool(ran_on & set(callers)) == (may_help or stacks[0] >= 1 << 20)  # as large as a worker's


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_a_queue_needs_threads(threads: int) -> None:
    assert cpu_queue(threads) is None
    with pytest.raises(DeviceError, match=f"1 to 4096 threads, not {threads}"):
        native.check(core_abi.INVALID)


def test_a_cpu_that_cannot_be_had() -> None:
    for cpus in [(0, 3000), (3000, 0)]:
        assert cpu_queue(2, cpus) is None
        assert "CPU 3000: this process may not use it" in native.last_message()


def test_lists_are_checked() -> None:
    commands = (core_abi.CpuCommandStruct * 1)(
        core_abi.CpuCommandStruct(op=core_abi.CPU_COPY, table=1, size=8)
    )
    words = (ctypes.c_uint64 * 2)()
    assert native.core.mn_cpu_list_create(commands, 1, words, 2, None, 0, False) is None
    assert "past the 2 words" in native.last_message()
    commands[0].op = core_abi.CPU_DISPATCH
    assert native.core.mn_cpu_list_create(commands, 1, words, 2, None, 0, False) is None
    assert "no kernel" in native.last_message()
    reloc = (core_abi.CpuRelocStruct * 1)(core_abi.CpuRelocStruct(2, 0, 0))
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


@pytest.mark.resident_memory
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_small_pages_become_resident_one_by_one():
    size, stride = 64 << 20, 256 << 10
    address = map_memory(size)
    native.core.mn_memory_small_pages(address, size)
    data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    before = anonymous_memory()
    data[::stride] = 1
    assert size // stride * PAGE <= anonymous_memory() - before + PAGE < size // 8
    assert data[::stride].all() and not data[1::stride].any()
    native.core.mn_memory_unmap(address, size)


@pytest.mark.parametrize("size", [0, 1 << 62, 2**64 - 1, 2**64 - 2**21])
def test_memory_that_cannot_be_had(size: int) -> None:
    with pytest.raises(OutOfMemoryError, match=str(size)):
        map_memory(size)


def mappings() -> str:
    return Path("/proc/self/maps").read_text(encoding="utf-8")


def permissions(address: int) -> str:
    """Those of the region with an address: the kernel may join it to one beside it."""
    for line in mappings().splitlines():
        region, permitted, *_ = line.split()
        start, end = (int(bound, 16) for bound in region.split("-"))
        if start <= address < end:
            return permitted
    return ""


def test_code_is_mapped_executable_and_not_writable() -> None:
    address = ctypes.c_uint64()
    native.check(native.core.mn_code_map(RET, len(RET), ctypes.byref(address)))
    assert permissions(address.value) == "r-xp"
    kernel_type()(address.value)(None, None, 0, 0)
    native.core.mn_code_unmap(address.value, len(RET))
    assert "x" not in permissions(address.value)


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


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a library with")
def test_thread_locals_of_other_libraries_take_no_stack_from_workers(tmp_path: Path) -> None:
    """glibc takes them from the stack that was asked for: 2 MiB are more than all of a worker's."""
    library = tmp_path / "locals.so"
    source = "_Thread_local char room[2 << 20]; char *place(void) { return room; }"
    command = [str(COMPILER), "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    code = (
        "from mansard.hal import *\n"
        "from mansard.hal.registry import open_device\n"
        "cpu = open_device('cpu'); out = cpu.allocate(64); done = Point(Semaphore(), 1)\n"
        "cpu.submit([Submission(cpu.record([FillCommand(BufferRef(out), 64, 7)]), signal=(done,))])\n"
        "done.wait(20)\n"
        "print(out.view()[0])\n"
    )
    preload = ":".join(filter(None, [os.environ.get("LD_PRELOAD"), str(library)]))
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LD_PRELOAD": preload},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (0, "7\n"), run.stderr
