"""Rockchip's packages in a worker process of the environment that has them, and the chips they know."""

from __future__ import annotations

from pathlib import Path

from mansard.errors import WorkerUnavailableError
from mansard.workers import Environment, interpreter, problem

PYTHON_VARIABLE = "MANSARD_RKNN_PYTHON"
"""The interpreter that has Rockchip's packages, where this one has not."""
FORMAT = "rknn-region"
TOOLKIT, RUNTIME = "rknn-toolkit2", "rknn-toolkit-lite2"
CHIPS = ("rk3562", "rk3566", "rk3568", "rk3576", "rk3588", "rv1103b", "rv1106b", "rv1126b")
DEFAULT = "rk3588"
_COMPATIBLE = Path("/proc/device-tree/compatible")


def chip() -> str:
    """The chip of this machine, by the kernel's device tree; empty where it is none of Rockchip's."""
    try:
        names = _COMPATIBLE.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return next((name.partition(",")[2] for name in names if name.partition(",")[2] in CHIPS), "")


def environment(*, runs: bool = False) -> Environment:
    """Where Rockchip's packages are: the toolkit, or, to run regions on a chip, the runtime.

    Raises WorkerUnavailableError.
    """
    package, module = (RUNTIME, "rknnlite") if runs and chip() else (f"{TOOLKIT}==2.5.0", "rknn")
    python = interpreter(PYTHON_VARIABLE, module)
    if python is None:
        raise WorkerUnavailableError(
            f"{package} is not installed: pip install it into an environment of its own, "
            f"{PYTHON_VARIABLE}=/path/to/its/python"
        )
    return Environment(python, ("mansard_rknn",), (package,))


def absence() -> str | None:
    """Why regions cannot be run here; None where they can, as far as versions tell."""
    try:
        return problem(environment(runs=True), "RKNN")
    except WorkerUnavailableError as error:
        return str(error)
