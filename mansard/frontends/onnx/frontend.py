"""The frontend of ONNX models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mansard.errors import ImportModelError
from mansard.frontends.frontend import Frontend, has_base, has_suffix

if TYPE_CHECKING:
    from mansard.ir.graph import Graph


class OnnxFrontend(Frontend):
    """Options are those of `mansard.frontends.onnx.importer.import_onnx`."""

    name = "onnx"
    reads = "ONNX (.onnx file, onnx.ModelProto)"
    requires = "mansard[onnx]"

    def accepts(self, model: Any) -> bool:
        """A ``.onnx`` file, or a model in memory, recognised by its class name."""
        return has_suffix(model, ".onnx") or has_base(
            model, "onnx.onnx_ml_pb2.ModelProto", "onnx.onnx_pb.ModelProto"
        )

    def import_model(self, model: Any, example_inputs: Any = None, *, cache: bool, **options: Any) -> Graph:
        """Read and import the model, which states its shapes."""
        from mansard.frontends.onnx.importer import import_onnx

        if example_inputs is not None:
            raise ImportModelError(
                "an ONNX model states its shapes; it takes no example inputs (dims={'batch': 4} fixes a "
                "symbolic dim)"
            )
        return import_onnx(model, **options)


FRONTEND = OnnxFrontend()
