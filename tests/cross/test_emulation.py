"""Kernels of other CPUs, AArch64 and RISC-V ones under qemu-user, against the reference interpreter."""

from __future__ import annotations

from types import ModuleType

import pytest
from support.emulation.cases import Collector, functions
from support.emulation.cpus import CPUS, Emulated
from support.emulation.emulator import Batch, CrashError

from tests.kernels import test_attention, test_narrow_types, test_ops, test_windows

pytestmark = pytest.mark.emulation
MODULES = (test_ops, test_narrow_types, test_attention, test_windows)
LOOK_INSIDE = {"test_rows_without_any_key_give_zeros"}
"""Tests that look at the outputs of a call themselves: these are not there yet when cases are collected."""
CASES = [(m, name) for m in MODULES for name in functions(m) if name not in LOOK_INSIDE]


@pytest.fixture(scope="module")
def failures(request):
    """What failed, by case, of the functions selected for a CPU; a CPU's cases run in one process."""
    done: dict[str, dict[str, str]] = {}

    def of(cpu: Emulated) -> dict[str, str]:
        if cpu.name not in done:
            target, emulated = cpu.choice()
            collector = Collector(target, Batch(cpu.arch, emulated))
            for module, names in _selected(request.session, cpu).items():
                collector.collect(module, names, 3 if cpu.thorough else 1)
            try:
                done[cpu.name] = collector.failures()
            except CrashError as error:
                done[cpu.name] = {"": str(error)}
        return done[cpu.name]

    return of


def _selected(session: pytest.Session, cpu: Emulated) -> dict[ModuleType, list[str]]:
    selected: dict[ModuleType, list[str]] = {}
    for item in session.items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        if given.get("cpu") is cpu and "case" in given:
            module, name = given["case"]
            selected.setdefault(module, []).append(name)
    return selected


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}-{case[1]}".replace("test_", ""))
def test_kernels_match(failures, cpu, case):
    wrong = {c: why for c, why in failures(cpu).items() if not c or c.startswith(f"{case[1]}[")}
    assert not wrong, "\n".join(f"{c}: {why}" for c, why in wrong.items())
