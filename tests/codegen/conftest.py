"""The machines that run emitted kernels, and the widths of their values."""

from __future__ import annotations

import pytest
from support.kernels.runner import machines


@pytest.fixture(params=machines())
def machine(request):
    return request.param


@pytest.fixture(params=["scalar", "vector"])
def lanes(request, machine):
    return 1 if request.param == "scalar" else 4 if machine.is_gpu else 16
