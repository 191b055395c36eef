"""Kernels of other CPUs, AArch64 and RISC-V ones under qemu-user, against the reference interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from support.emulation.cases import Collector, functions
from support.emulation.cpus import CPUS, Emulated
from support.emulation.emulator import Batch, CrashError

from tests.kernels import test_attention, test_narrow_types, test_ops, test_windows

pytestmark = [pytest.mark.emulation, pytest.mark.variants(2)]
MODULES = (test_ops, test_narrow_types, test_attention, test_windows)
LOOK_INSIDE = {"test_rows_without_any_key_give_zeros"}
"""Tests that look at the outputs of a call themselves: these are not there yet when cases are collected."""
CASES = [(m, name) for m in MODULES for name in functions(m) if name not in LOOK_INSIDE]
RUNS = [
    *((cpu, 1, "") for cpu in CPUS),
    # Other shapes of the same kernels; one of each kind is above.
    *((cpu, 3, "-several") for cpu in CPUS if cpu.thorough),
]
"""CPUs, how many cases of each test function run on them, and a suffix of the tests' names."""
IN_TURN = [cpu for cpu in CPUS if not cpu.thorough and not cpu.repeats]
TURNS = 3
"""By default the CPUs that are not thorough take every third function each, beginning at another one: every
function runs on the thorough ones, and every CPU runs kernels of each module."""


@pytest.fixture(scope="module")
def failures(request):
    """What failed, by case, of the functions selected for a CPU; a CPU's cases run in one process."""
    done: dict[tuple[str, int], dict[str, str]] = {}

    def of(cpu: Emulated, limit: int) -> dict[str, str]:
        run = cpu.name, limit
        if run not in done:
            target, emulated = cpu.choice()
            collector = Collector(target, Batch(cpu.arch, emulated))
            for module, names in _selected(request.session, cpu, limit).items():
                collector.collect(module, names, limit)
            try:
                done[run] = collector.failures()
            except CrashError as error:
                done[run] = {"": str(error)}
        return done[run]

    return of


def _selected(session: pytest.Session, cpu: Emulated, limit: int) -> dict[ModuleType, list[str]]:
    selected: dict[ModuleType, list[str]] = {}
    for item in session.items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        if given.get("cpu") is cpu and given.get("limit") == limit and "case" in given:
            module, name = given["case"]
            selected.setdefault(module, []).append(name)
    return selected


def _parameters() -> Iterator[Any]:
    for cpu, limit, suffix in RUNS:
        for number, case in enumerate(CASES):
            name = f"{case[0].__name__}-{case[1]}".replace("test_", "")
            slow = limit > 1 or (cpu in IN_TURN and (number + IN_TURN.index(cpu)) % TURNS > 0)
            yield cpu.param(limit, case, prefix=f"{name}-", suffix=suffix, slow=slow)


@pytest.mark.parametrize(("cpu", "limit", "case"), list(_parameters()))
def test_kernels_match(failures, cpu, limit, case):
    wrong = {c: why for c, why in failures(cpu, limit).items() if not c or c.startswith(f"{case[1]}[")}
    assert not wrong, "\n".join(f"{c}: {why}" for c, why in wrong.items())
