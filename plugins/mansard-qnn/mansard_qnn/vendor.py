"""ONNX Runtime with Qualcomm's provider, as both halves of the driver use it."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mansard.errors import DeviceUnavailableError

FORMAT = "qnn-context"
OLDEST = {"onnxruntime": (1, 24, 2), "onnxruntime_qnn": (2, 0, 0)}
NO_FALLBACK = {"session.disable_cpu_ep_fallback": "1"}
"""Everything on the NPU, or an error."""
_FASTRPC = ("fastrpc-cdsp", "fastrpc-cdsp-secure", "adsprpc-smd", "adsprpc-smd-secure")
_QUIET = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_MESSAGE_CHARACTERS = 400


def is_emulated() -> bool:
    """Whether Qualcomm's libraries for this machine are those of the emulator."""
    return platform.machine() in ("x86_64", "AMD64")


def absence() -> str | None:
    """Why a machine that could have a Hexagon NPU has none that can be used."""
    if is_emulated() or any(Path("/dev", name).exists() for name in _FASTRPC):
        return None
    return f"no driver of a Hexagon NPU: none of {', '.join(_FASTRPC)} is in /dev"


@functools.cache
def packages() -> tuple[Any, Any, Sequence[Any]]:
    """ONNX Runtime, Qualcomm's package, and what the provider runs on, which is registered once.

    Raises DeviceUnavailableError where one of them is missing, too old or broken.
    """
    try:
        import onnxruntime
        import onnxruntime_qnn

        for package in (onnxruntime, onnxruntime_qnn):
            version = tuple(int(part) for part in re.findall(r"\d+", package.__version__)[:3])
            if version < (oldest := OLDEST[package.__name__]):
                needed = ".".join(map(str, oldest))
                raise DeviceUnavailableError(
                    f"{package.__name__} {package.__version__} is older than {needed}"
                )
        name = onnxruntime_qnn.get_ep_name()
        onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
        devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == name]
    except DeviceUnavailableError:
        raise
    except ModuleNotFoundError as error:
        if error.name not in OLDEST:
            raise DeviceUnavailableError(f"onnxruntime-qnn is broken: {error}") from error
        raise DeviceUnavailableError(
            f"{error.name} is not installed: pip install 'mansard-qnn[vendor]'"
        ) from error
    # A broken installation may raise anything.
    except Exception as error:
        raise DeviceUnavailableError(
            f"onnxruntime-qnn is broken: {type(error).__name__}: {shown(error)}"
        ) from error
    if not devices:
        raise DeviceUnavailableError("onnxruntime-qnn finds nothing that it runs on")
    return onnxruntime, onnxruntime_qnn, devices


def options(settings: Mapping[str, str], severity: int = 4) -> Any:
    """Options of a session on the NPU: settings with a dot in their name are the session's, others the
    provider's; messages of lesser ``severity`` (0 to 4) are not logged."""
    onnxruntime, qualcomm, devices = packages()
    result = onnxruntime.SessionOptions()
    result.log_severity_level = severity
    result.intra_op_num_threads = 1
    for name, value in {**_QUIET, **settings}.items():
        if "." in name:
            result.add_session_config_entry(name, value)
    provider = {name: value for name, value in settings.items() if "." not in name}
    result.add_provider_for_devices(devices, {"backend_path": qualcomm.get_qnn_htp_path(), **provider})
    return result


def shown(error: BaseException) -> str:
    """What ONNX Runtime says, without its numbers and on one line."""
    return " ".join(_CODE.sub("", str(error)).split())[:_MESSAGE_CHARACTERS]
