"""OpenVINO, as both halves of the driver use it."""

from __future__ import annotations

import functools
from typing import Any

from mansard.errors import DeviceUnavailableError

FORMAT = "openvino-onnx"
OLDEST = (2025, 0)
_MESSAGE_CHARACTERS = 400


def settings(device: str) -> dict[str, str]:
    """How OpenVINO compiles for one of its devices. Left to itself the CPU computes in bf16; an NPU has no
    f32."""
    latency = {"PERFORMANCE_HINT": "LATENCY"}
    return latency if device.startswith("NPU") else {**latency, "INFERENCE_PRECISION_HINT": "f32"}


@functools.cache
def core() -> Any:
    """OpenVINO; raises DeviceUnavailableError where it is missing, too old or broken."""
    try:
        import openvino

        version = tuple(int(part) for part in openvino.__version__.split(".")[:2])
        if version < OLDEST:
            raise DeviceUnavailableError(
                f"OpenVINO {openvino.__version__} is older than {'.'.join(map(str, OLDEST))}: "
                "pip install --upgrade openvino"
            )
        return openvino.Core()
    except ModuleNotFoundError as error:
        if error.name != "openvino":
            raise DeviceUnavailableError(f"OpenVINO is broken: {error}") from error
        raise DeviceUnavailableError(
            "OpenVINO is not installed: pip install 'mansard-openvino[vendor]'"
        ) from error
    except DeviceUnavailableError:
        raise
    # A broken installation may raise anything.
    except Exception as error:
        raise DeviceUnavailableError(f"OpenVINO is broken: {type(error).__name__}: {shown(error)}") from error


def shown(error: BaseException) -> str:
    """What OpenVINO says, without the places in its sources."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith("Exception from ")]
    return " ".join(kept or lines)[:_MESSAGE_CHARACTERS]
