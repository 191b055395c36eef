"""Reading of ONNX models, whose large weights stay in their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from mansard.errors import ImportModelError

MIN_OPSET, MAX_OPSET = 7, onnx.defs.onnx_opset_version()
"""Versions of the default operator set that are read. Below 7, broadcasting was another."""


@dataclass(frozen=True)
class OnnxModel:
    """A model and the folder that its external data lies in (None for a model in memory)."""

    proto: Any
    folder: Path | None
    name: str


def read_model(source: Any) -> OnnxModel:
    """Read a file, or take a ``ModelProto``, which is copied.

    External data is not read. Raises ImportModelError for a file that cannot be read, is no ONNX model, or
    uses a version of the operator set outside ``MIN_OPSET`` … ``MAX_OPSET``.
    """
    if isinstance(source, (str, Path)):
        model = OnnxModel(_load(Path(source)), Path(source).parent, Path(source).stem)
    else:
        copied = onnx.ModelProto()
        copied.CopyFrom(source)
        model = OnnxModel(copied, None, "main")
    _check_versions(model.proto)
    return model


def _load(path: Path) -> Any:
    try:
        proto = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ImportModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (DecodeError, ValueError) as error:
        raise ImportModelError(f"{path} is not an ONNX model: {error}") from error
    return proto


def _check_versions(proto: Any) -> None:
    if not proto.graph.node and not proto.graph.output:
        raise ImportModelError("the ONNX model has no graph")
    versions = [entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions:
        if all(node.domain not in ("", "ai.onnx") for node in proto.graph.node):
            return  # ops of other domains only
        raise ImportModelError("the ONNX model does not say which operator set it uses (opset_import)")
    if not MIN_OPSET <= max(versions) <= MAX_OPSET:
        raise ImportModelError(
            f"the ONNX model uses operator set {max(versions)}; {MIN_OPSET} to {MAX_OPSET} are read "
            "(onnx.version_converter converts others)"
        )
