"""OpenVINO's reader and compilers, for a child process: a crash or a hang of a plug-in ends no other."""

from __future__ import annotations

from collections.abc import Mapping

from mansard_openvino import vendor


def problem(model: bytes, device: str, settings: Mapping[str, str]) -> str:
    """Why OpenVINO does not take an ONNX model: empty when it does. For a device that is not here the
    model is only read; its own driver compiles it, there, when it is loaded."""
    core = vendor.core()
    try:
        network = core.read_model(bytes(model))
        if device in core.available_devices:
            core.compile_model(network, device, dict(settings))
    except RuntimeError as error:
        return vendor.shown(error)
    return ""
