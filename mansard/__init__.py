"""Compile a trained model once and run it on everything a chip has: CPU, GPU and NPU, at the same time.

    import mansard
    model = mansard.compile(torch_module, example_inputs)
    y = model(x)

Names are loaded when they are first used: importing the package costs milliseconds, and neither the
compiler nor any framework is imported before it is needed.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from mansard.errors import (
    ArtifactError,
    CallCancelledError,
    CodegenError,
    CompileError,
    DeadlineExceededError,
    DeviceError,
    DeviceLostError,
    DeviceUnavailableError,
    ExecutionError,
    GraphSyntaxError,
    ImportModelError,
    InputError,
    MansardError,
    OutOfMemoryError,
    PlacementError,
    QueueFullError,
    ShapeContractError,
    SignatureError,
    TargetMismatchError,
    UnsupportedOpError,
    VerificationError,
    WaitTimeoutError,
    WorkerCallError,
    WorkerError,
    WorkerLostError,
    WorkerUnavailableError,
)

if TYPE_CHECKING:
    from mansard.api import Explanation, Model, compile, devices, load, lower, tune  # noqa: A004
    from mansard.dims import Dim
    from mansard.hal.registry import configure_driver
    from mansard.language import load_lm
    from mansard.placement import PlacementOptions
    from mansard.quantisation import QuantizedModel, quantize

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "CallCancelledError",
    "CodegenError",
    "CompileError",
    "DeadlineExceededError",
    "DeviceError",
    "DeviceLostError",
    "DeviceUnavailableError",
    "Dim",
    "ExecutionError",
    "Explanation",
    "GraphSyntaxError",
    "ImportModelError",
    "InputError",
    "MansardError",
    "Model",
    "OutOfMemoryError",
    "PlacementError",
    "PlacementOptions",
    "QuantizedModel",
    "QueueFullError",
    "ShapeContractError",
    "SignatureError",
    "TargetMismatchError",
    "UnsupportedOpError",
    "VerificationError",
    "WaitTimeoutError",
    "WorkerCallError",
    "WorkerError",
    "WorkerLostError",
    "WorkerUnavailableError",
    "compile",
    "configure_driver",
    "devices",
    "get_include",
    "load",
    "load_lm",
    "lower",
    "quantize",
    "tune",
]

_LAZY = {
    "Dim": "mansard.dims",
    "Explanation": "mansard.api",
    "Model": "mansard.api",
    "PlacementOptions": "mansard.placement",
    "QuantizedModel": "mansard.quantisation",
    "compile": "mansard.api",
    "configure_driver": "mansard.hal.registry",
    "devices": "mansard.api",
    "load": "mansard.api",
    "load_lm": "mansard.language",
    "lower": "mansard.api",
    "quantize": "mansard.quantisation",
    "tune": "mansard.api",
}

_RENAMED = {"Placement": "PlacementOptions"}
"""Former names, which go with the next minor release."""


def get_include() -> str:
    """The folder of ``mansard_core.h``, the C interface of the native core, for drivers written in C."""
    from pathlib import Path

    return str(Path(__file__).parent / "include")


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(f"mansard.{name} is now mansard.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(__name__), _RENAMED[name])
    if name not in _LAZY:
        raise AttributeError(f"module 'mansard' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
