"""Lowering of an ONNX graph to linalg-on-tensors MLIR by torch-mlir's importer and pipelines."""

from __future__ import annotations

import re
from typing import Any

import onnx
from onnx import inliner

from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.linalg.module import PREPARE
from mansard.frontends.mlir_worker.passes import Diagnostic, PipelineError, bytecode, new_context, parse
from mansard.frontends.mlir_worker.pool import lower
from mansard.frontends.mlir_worker.process import WorkerDiedError

_WHOLE_OPS = "aten.flatten.using_ints,aten.unflatten.int"
"""Ops the torch backend pipeline must not decompose: they state which dims a view merges or splits."""
PIPELINES = (
    f"torch-onnx-to-torch-backend-pipeline{{backend-legal-ops={_WHOLE_OPS}}}",
    "torch-backend-to-linalg-on-tensors-backend-pipeline",
    PREPARE,
)
"""From ops of ONNX in torch-mlir's dialect to linalg on tensors."""
_OPERATOR = re.compile(r'name = "onnx\.([\w.]+)"|torch\.operator \\?"onnx\.([\w.]+)\\?"|\bonnx\.([\w.]+)')


def lower_to_linalg(proto: Any) -> Any:
    """The graph as an MLIR module with one function of the graph's inputs and outputs.

    Functions of the model are inlined. An op without a lowering that the ONNX standard defines as a function
    of other ops is replaced by them. Raises UnsupportedOpError naming the ONNX op and its node.
    """
    proto = inliner.inline_local_functions(proto)
    replaced: set[str] = set()
    while True:
        try:
            return parse(lower(onnx_bytecode(proto), PIPELINES), new_context())
        except PipelineError as error:
            failure = _lowering_failure(error)
            name = failure.op.removeprefix("onnx.") if isinstance(failure, UnsupportedOpError) else ""
            expanded = _expanded(proto, name) if name and name not in replaced else None
            if expanded is None:
                raise failure from error
            replaced.add(name)
            proto = expanded
        except WorkerDiedError as error:
            raise ImportModelError(f"lowering the ONNX graph, torch-mlir {error}") from error


def _expanded(proto: Any, name: str) -> Any | None:
    """The model with an op replaced by the standard's function for it; None where there is none."""
    version = max(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))
    try:
        schema: Any = onnx.defs.get_schema(name, version, "")
    except onnx.defs.SchemaError:
        return None
    if not schema.has_function and not schema.has_context_dependent_function:
        return None
    try:
        typed = onnx.shape_inference.infer_shapes(proto)  # functions depend on their operands' types
        return inliner.inline_selected_functions(typed, [("", name)], inline_schema_functions=True)
    except RuntimeError:  # the inliner's own checks: a type that is not known, an attribute it does not take
        return None


def onnx_bytecode(proto: Any) -> bytes:
    """The graph as MLIR bytecode, each node a ``torch.operator``, with shapes inferred."""
    from torch_mlir.extras import onnx_importer

    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise ImportModelError(f"the ONNX graph is not valid: {error}") from error
    try:
        info = onnx_importer.ModelInfo(inferred)
        module = info.create_module(context=new_context())
        onnx_importer.NodeImporter.define_function(info.main_graph, module.operation).import_all()
    except onnx_importer.OnnxImportError as error:
        raise ImportModelError(f"torch-mlir cannot import the ONNX graph: {error}") from error
    return bytecode(module)


def _lowering_failure(error: PipelineError) -> Exception:
    for diagnostic in error.diagnostics:
        name = _op_name(diagnostic)
        if name:
            return UnsupportedOpError(f"onnx.{name}", diagnostic.location, diagnostic.no_lowering)
    first = error.diagnostics[0]
    return ImportModelError(f"torch-mlir cannot lower the model at {first.location}: {first.message}")


def _op_name(diagnostic: Diagnostic) -> str:
    match = _OPERATOR.search(f"{diagnostic.message} {diagnostic.notes}")
    return next((group for group in match.groups() if group), "") if match else ""
