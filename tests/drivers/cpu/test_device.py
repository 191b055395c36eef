"""The cpu driver beyond the common contract."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import cpu_kernels
from support.paths import TESTS

from mansard.codegen.llvm import target as llvm_target
from mansard.drivers.cpu import host
from mansard.drivers.cpu.device import CpuDevice
from mansard.drivers.cpu.driver import DRIVER
from mansard.drivers.cpu.host import host_cpu, parse_cpuinfo
from mansard.drivers.cpu.threads import host_threads
from mansard.errors import ArtifactError, DeviceError, InputError, TargetMismatchError
from mansard.hal import (
    BarrierCommand,
    BindingSlot,
    BufferRef,
    Command,
    CopyCommand,
    Device,
    DispatchCommand,
    EntryPoint,
    ExecutableSpec,
    FillCommand,
    Point,
    Semaphore,
    Submission,
)
from mansard.testing.adapter import WAIT


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = DRIVER.open(DRIVER.devices()[0])
    yield device
    device.close()


def run(device: Device, *commands: Command) -> None:
    done = Point(Semaphore("run"), 1)
    device.submit([Submission(device.record(commands), signal=(done,))])
    done.wait(WAIT)


# ---- listing ----

X86 = """processor\t: 0
model name\t: Some CPU @ 3 GHz
flags\t\t: fpu sse2 pni sse4_1 avx avx2 fma bmi1 abm avx512f avx512_vnni avx512_bf16 avx_vnni

processor\t: 1
model name\t: Some CPU @ 3 GHz
flags\t\t: fpu sse2 pni sse4_1 avx avx2 fma bmi1 abm avx512f avx512_vnni
"""
ARM = """processor\t: 0
Features\t: fp asimd atomics fphp asimdhp asimddp i8mm

processor\t: 1
Features\t: fp asimd atomics fphp asimdhp asimddp

Hardware\t: A Phone
"""


def test_cpuinfo_of_x86() -> None:
    cpu = parse_cpuinfo(X86, "x86_64")
    assert (cpu.name, cpu.arch) == ("Some CPU @ 3 GHz", "x86_64")
    # Only what every processor has; in LLVM's spelling.
    assert cpu.features >= {"sse3", "sse4.1", "avx2", "bmi", "lzcnt", "avx512vnni"}
    assert not cpu.features & {"avx512bf16", "avxvnni", "pni"}
    assert cpu.target == "cpu:x86_64+avx,+avx2,+avx512f,+avx512vnni,+bmi,+fma,+lzcnt,+sse2,+sse3,+sse4.1"


@pytest.mark.parametrize("allowed", [True, False])
def test_tile_registers_are_used_where_linux_allows_it(
    monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """A process has to ask for them."""
    cpu = parse_cpuinfo(X86.replace("avx512_vnni", "avx512_vnni amx_tile amx_bf16"), "x86_64")
    assert {"amx-tile", "amx-bf16"} <= cpu.features
    monkeypatch.setattr(host, "parse_cpuinfo", lambda *_: cpu)
    monkeypatch.setattr(host, "_may_use_tiles", lambda: allowed)
    features = host_cpu.__wrapped__().features
    assert features == cpu.features if allowed else not any(f.startswith("amx-") for f in features)


def test_cpuinfo_of_arm() -> None:
    cpu = parse_cpuinfo(ARM, "aarch64")
    assert (cpu.name, cpu.arch) == ("A Phone", "aarch64")
    assert cpu.target == "cpu:aarch64+dotprod,+fullfp16,+lse,+neon"


def test_cpuinfo_of_riscv() -> None:
    cpu = parse_cpuinfo("hart\t: 0\nisa\t: rv64imafdcv_zba_zbb\nuarch\t: vendor,core\n", "riscv64")
    assert cpu.name == "vendor,core"
    assert cpu.target == "cpu:riscv64+a,+c,+d,+f,+m,+v,+zba,+zbb,+zvl128b"


def test_riscv_vectors_have_the_length_the_cpu_says() -> None:
    isa = "hart\t: 0\nisa\t: rv64imafdcv_zfh_zvfh\n"
    x60 = parse_cpuinfo(isa, "riscv64", 256)
    assert x60.features >= {"zvl128b", "zvl256b", "zvfhmin", "zfhmin"} and "zvl512b" not in x60.features
    assert llvm_target.parse("cpu:spacemit-x60,-zicond,-zba,-zbb,-zbs").features <= x60.features
    assert not parse_cpuinfo(isa.replace("cv_", "c_"), "riscv64").features & {"v", "zvl128b"}


def test_no_cpuinfo() -> None:
    cpu = parse_cpuinfo("", "sparc64")
    assert (cpu.name, cpu.target) == ("sparc64 CPU", "cpu:sparc64")


def test_the_listed_target_can_be_compiled_for() -> None:
    (info,) = DRIVER.devices()
    assert info.supported
    parsed = llvm_target.parse(info.target)
    assert parsed.features <= host_cpu().features
    assert parsed.features == llvm_target.parse("cpu:host").features


def test_listing(cpu: Device) -> None:
    info = cpu.info
    assert (info.id, info.kind) == ("cpu", "cpu")
    assert info.limits["threads"] == host_threads().default_threads
    assert info.heaps[0].size > 1 << 28
    assert cpu.capabilities.features == host_cpu().features


def test_a_bad_number_of_threads_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from mansard.hal import registry\n"
        "info = [d for d in registry.devices() if d.driver == 'cpu'][0]; print(info.reasons[0])\n"
        "try: registry.open_device('cpu')\n"
        "except Exception as error: print(type(error).__name__)\n"
    )
    environment = {**os.environ, "MANSARD_NUM_THREADS": "many"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    reason, error = out.stdout.splitlines()
    assert "MANSARD_NUM_THREADS is many" in reason
    assert error == "DeviceUnavailableError"


def test_threads_can_be_chosen() -> None:
    info = DRIVER.devices()[0]
    device = DRIVER.open(info, threads=5)
    assert device.threads == 5
    device.close()
    with pytest.raises(InputError, match="threads is 0"):
        DRIVER.open(info, threads=0)


# ---- loading ----


def spec(**changes: object) -> ExecutableSpec:
    fields = {
        "format": "cpu-image",
        "target": f"cpu:{platform.machine()}",
        "code": b"\xc3" * 64,
        "entries": (EntryPoint("k", 1, 0),),
    }
    return ExecutableSpec(**{**fields, **changes})  # type: ignore[arg-type]


def test_every_missing_feature_is_named(cpu: Device) -> None:
    present = next(iter(host_cpu().features))
    with pytest.raises(TargetMismatchError, match="lacks: quantum, psychic"):
        cpu.load(spec(requires=(present, "quantum", "psychic")))


def test_code_of_another_architecture(cpu: Device) -> None:
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    with pytest.raises(TargetMismatchError, match=f"code is for {other}"):
        cpu.load(spec(target=f"cpu:{other}+avx"))


def test_an_entry_outside_the_image(cpu: Device) -> None:
    with pytest.raises(ArtifactError, match="'k' starts at byte 64 of an image of 64 bytes"):
        cpu.load(spec(entries=(EntryPoint("k", 1, 0, offset=64),)))


def test_code_may_be_a_view_of_a_file(cpu: Device) -> None:
    good = cpu_kernels.spec("fill_index")
    executable = cpu.load(ExecutableSpec(good.format, good.target, memoryview(good.code), good.entries))
    assert set(executable.entries) == {"fill_index"}
    executable.close()
    executable.close()


def test_a_recording_keeps_its_code(cpu: Device) -> None:
    executable = cpu.load(cpu_kernels.spec("fill_index"))
    out = cpu.allocate(64)
    recorded = cpu.record(
        [DispatchCommand(executable, "fill_index", (BufferRef(out),), (16, 1, 0), (1, 1, 1))]
    )
    executable.close()
    with pytest.raises(DeviceError, match="closed"):
        cpu.record([DispatchCommand(executable, "fill_index", (BufferRef(out),), (16, 1, 0), (1, 1, 1))])
    done = Point(Semaphore(), 1)
    cpu.submit([Submission(recorded, signal=(done,))])
    done.wait(WAIT)
    assert out.view().view(np.int32).tolist() == list(range(16))


# ---- recording ----


@pytest.mark.parametrize("grid", [(1, 1, 1), (5, 1, 1), (1, 7, 1), (3, 5, 7), (40, 30, 2)])
def test_the_grid_has_three_dims(cpu: Device, grid: tuple[int, int, int]) -> None:
    x, y, z = grid
    out = cpu.allocate(4 * x * y * z)
    run(cpu, DispatchCommand(cpu.load(cpu_kernels.spec("where")), "where", (BufferRef(out),), (), grid))
    zz, yy, xx = np.mgrid[0:z, 0:y, 0:x]
    np.testing.assert_array_equal(out.view().view(np.int32).reshape(z, y, x), 1 + xx + (yy << 8) + (zz << 16))


def test_an_empty_grid_runs_nothing(cpu: Device) -> None:
    run(
        cpu,
        DispatchCommand(
            cpu.load(cpu_kernels.spec("where")), "where", (BufferRef(cpu.allocate(4)),), (), (4, 0, 1)
        ),
    )


def test_wrong_commands_are_refused_when_recorded(cpu: Device) -> None:
    executable = cpu.load(cpu_kernels.spec("add"))
    buffer = cpu.allocate(64)
    ref, closed = BufferRef(buffer), cpu.allocate(64)
    closed.close()
    cases: list[tuple[Command, str]] = [
        (DispatchCommand(executable, "sub", (ref,) * 3, (1,), (1, 1, 1)), "no kernel 'sub' .*it has add"),
        (
            DispatchCommand(executable, "add", (ref,) * 2, (1,), (1, 1, 1)),
            "3 buffers and 1 params, got 2 and 1",
        ),
        (DispatchCommand(executable, "add", (ref,) * 3, (1,), (-1, 1, 1)), "grid"),
        (DispatchCommand(executable, "add", (ref,) * 3, (1,), (2**32 - 1,) * 3), "out of range"),
        (CopyCommand(ref, BufferRef(buffer, 60), 8, label="mine"), "mine: bytes 60 ... 68 of a buffer of 64"),
        (FillCommand(ref, 6), "multiple of 4"),
        (FillCommand(BufferRef(closed), 64), "closed"),
        (FillCommand(BufferRef(BindingSlot(-1)), 64), "slot -1"),
    ]
    for command, message in cases:
        with pytest.raises(DeviceError, match=message):
            cpu.record([command])


def test_negative_params_reach_the_kernel(cpu: Device) -> None:
    out = cpu.allocate(8)
    wide = cpu.load(cpu_kernels.spec("wide"))
    run(cpu, DispatchCommand(wide, "wide", (BufferRef(out),), (-(2**63), 2**63 - 1, *[-1] * 18), (1, 1, 1)))
    assert out.view().view(np.int64)[0] == -19


def test_a_long_list(cpu: Device) -> None:
    executable = cpu.load(cpu_kernels.spec("add"))
    total, one = cpu.allocate(400), cpu.allocate(400)
    one.view().view(np.float32)[:] = 1
    refs = (BufferRef(total), BufferRef(one), BufferRef(total))
    run(cpu, *[DispatchCommand(executable, "add", refs, (100,), (7, 1, 1)), BarrierCommand()] * 5000)
    assert set(total.view().view(np.float32).tolist()) == {5000.0}


# ---- life ----


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.resident_memory
def test_ten_thousand_submissions_leave_memory_flat(cpu: Device) -> None:
    out = cpu.allocate(64)
    recorded = cpu.record([FillCommand(BufferRef(out), 64, 1)])
    timeline = Semaphore("flat")
    value = 0

    def submit(count: int) -> int:
        nonlocal value
        for _ in range(count):
            value += 1
            cpu.submit([Submission(recorded, signal=(Point(timeline, value),))])
            if value % 100 == 0:
                Point(timeline, value).wait(WAIT)
        Point(timeline, value).wait(WAIT)
        return resident()

    before = submit(2000)
    assert submit(10_000) - before < 1 << 20


@pytest.mark.resident_memory
def test_memory_is_given_back(cpu: Device) -> None:
    before = resident()
    for _ in range(20):
        buffer = cpu.allocate(16 << 20)
        buffer.view()[:] = 1
        del buffer
    assert resident() - before < 32 << 20


def test_busy_time(cpu: CpuDevice) -> None:
    out = cpu.allocate(4)
    spin = cpu.load(cpu_kernels.spec("spin"))
    start = time.monotonic_ns()
    run(cpu, DispatchCommand(spin, "spin", (BufferRef(out),), (100_000,), (100, 1, 1)))
    wall = time.monotonic_ns() - start
    stats = cpu.stats()
    assert 0 < stats.busy_ns <= wall
    assert stats.busy_ns > wall // 2
    assert (stats.submitted, stats.completed, stats.failed) == (1, 1, 0)


def test_an_unbound_slot_is_no_crash(cpu: Device) -> None:
    recorded = cpu.record([FillCommand(BufferRef(BindingSlot(1)), 64)])
    with pytest.raises(DeviceError, match="slot 1"):
        cpu.submit([Submission(recorded, bindings={0: cpu.allocate(64)})])


def test_an_interpreter_ends_with_work_running() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from support import cpu_kernels\n"
        "from mansard.hal import *\n"
        "from mansard.hal.registry import open_device\n"
        "cpu = open_device('cpu'); out = cpu.allocate(4)\n"
        "spin = cpu.load(cpu_kernels.spec('spin'))\n"
        "work = cpu.record([DispatchCommand(spin, 'spin', (BufferRef(out),), (100000,), (2000, 1, 1))])\n"
        "cpu.submit([Submission(work), Submission(work, wait=(Point(Semaphore(), 1),))])\n"
        "print('over')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(TESTS)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "over\n", "")
