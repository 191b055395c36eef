"""AArch64 and RISC-V kernels under qemu-user, against the reference interpreter."""

from __future__ import annotations

import pytest
import test_kernels
from cases import Collector, functions
from cpus import CPUS, Emulated
from emulator import Batch, CrashError

pytestmark = pytest.mark.emulation


@pytest.fixture(scope="module")
def failures(request):
    """What failed, by case, of the functions selected for a CPU; a CPU's cases run in one process."""
    done: dict[str, dict[str, str]] = {}

    def of(cpu: Emulated) -> dict[str, str]:
        if cpu.name not in done:
            target, emulated = cpu.choice()
            collector = Collector(target, Batch(cpu.arch, emulated))
            collector.collect(test_kernels, _selected(request.session, cpu))
            try:
                done[cpu.name] = collector.failures()
            except CrashError as error:
                done[cpu.name] = {"": str(error)}
        return done[cpu.name]

    return of


def _selected(session: pytest.Session, cpu: Emulated) -> list[str]:
    calls = [item.callspec.params for item in session.items if hasattr(item, "callspec")]
    return [p["function"] for p in calls if p.get("cpu") is cpu and "function" in p]


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
@pytest.mark.parametrize("function", functions(test_kernels))
def test_kernels_match(failures, cpu, function):
    wrong = {case: why for case, why in failures(cpu).items() if not case or case.startswith(f"{function}[")}
    assert not wrong, "\n".join(f"{case}: {why}" for case, why in wrong.items())
