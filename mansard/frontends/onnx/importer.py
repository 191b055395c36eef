"""The import pipeline of ONNX models: reading, lowering to linalg, import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.dims import Dim
from mansard.frontends.linalg.module import import_linalg
from mansard.frontends.mlir_worker.pool import warm
from mansard.frontends.onnx.lowering import lower_to_linalg
from mansard.frontends.onnx.reading import read_model
from mansard.frontends.onnx.signature import take_signature
from mansard.ir.graph import Graph


def import_onnx(model: Any, dims: Mapping[str, Dim | int] | None = None) -> Graph:
    """Import the path of an ``.onnx`` file, or an ``onnx.ModelProto``.

    Symbolic dims (``dim_param``) become the Graph's dims; ``dims`` gives ranges or values for them, by name:
    ``{"batch": 1, "sequence": Dim("sequence", 1, 512)}``. A dim that the model leaves open without a name is
    called after its input and axis: ``x_0``. Weights, also in external files, are read when they are needed.

    Raises ImportModelError for a model that cannot be read, UnsupportedOpError for an op without a lowering.
    """
    read = read_model(model)
    warm()  # starts while shapes are inferred
    signature = take_signature(read, dims or {})
    return import_linalg(
        lower_to_linalg(read.proto),
        signature.arguments,
        function=read.proto.graph.name,
        name=read.name,
        output_names=signature.output_names,
        output_dtypes=signature.output_dtypes,
    )
