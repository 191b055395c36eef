"""Comparing what a device computes with the reference interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mansard.api import Model
from mansard.drivers.vulkan.shaders.abi import spirv_modules
from mansard.hal.executable import ExecutableSpec
from mansard.plan.plan import Plan

Arrays = list[npt.NDArray[np.generic]]


def validate_spirv(plan: Plan, executables: Mapping[str, bytes]) -> None:
    """Every SPIR-V module of a plan passes spirv-val; where ``CI=true``, the tool must be installed."""
    tool = shutil.which("spirv-val")
    modules = [
        module
        for device in plan.devices
        for e in device.executables
        for module in spirv_modules(ExecutableSpec(e.format, e.target, executables[e.entry], (), e.requires))
    ]
    if tool is None:
        assert not modules or os.environ.get("CI", "") != "true", "spirv-val is not installed"
        return
    for module in modules:
        command = [tool, "--target-env", "vulkan1.3", "-"]
        checked = subprocess.run(command, input=module, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr.decode()


def outputs(model: Model, inputs: Sequence[npt.NDArray[np.generic]]) -> Arrays:
    """The outputs of a call, always as a list."""
    result = model(*inputs)
    return list(result) if isinstance(result, tuple) else [result]


def compare(actual: Arrays, expected: Arrays, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Equal shapes, element types and values; integers and bools exactly.

    ``atol`` is relative to the largest finite magnitude expected.
    """
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        if b.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b)
            continue
        wide = b.astype(np.float64)
        finite = np.abs(wide[np.isfinite(wide)])
        scale = float(finite.max()) if finite.size else 0.0
        np.testing.assert_allclose(a.astype(np.float64), wide, rtol=rtol, atol=atol * max(scale, 1e-30))
