"""The devices that tests of kernels run on."""

from __future__ import annotations

import pytest
from support import vulkan_support


@pytest.fixture(params=["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def device(request: pytest.FixtureRequest) -> str:
    """The CPU, and a Vulkan device where there is one."""
    if request.param == "vulkan":
        vulkan_support.usable_device()
    return str(request.param)
