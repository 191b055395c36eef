"""The machines that run emitted kernels, and the widths of their values."""

from __future__ import annotations

import pytest
from support.kernels.runner import machines


def pytest_generate_tests(metafunc):
    """Every machine; for tests of any width with scalars and with vectors.

    Scalars on the baseline are slow variants: what it lacks is taken the place of in vectors as well.
    """
    if "machine" not in metafunc.fixturenames:
        return
    if "lanes" not in metafunc.fixturenames:
        metafunc.parametrize("machine", machines())
        return
    widths = []
    for each in machines():
        (machine,) = each.values
        for name, lanes in (("scalar", 1), ("vector", 4 if machine.is_gpu else 16)):
            slow = [pytest.mark.slow] if (each.id, name) == ("cpu-baseline", "scalar") else []
            widths.append(pytest.param(machine, lanes, id=f"{each.id}-{name}", marks=[*each.marks, *slow]))
    metafunc.parametrize(("machine", "lanes"), widths)
