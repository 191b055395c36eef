"""Lowering of a torch.fx graph to linalg-on-tensors MLIR by torch-mlir's importer and pipelines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from mansard.errors import CompileError, ImportModelError, MansardError, UnsupportedOpError
from mansard.frontends.linalg.module import PREPARE
from mansard.frontends.mlir_worker.passes import Diagnostic, PipelineError, bytecode, new_context, parse
from mansard.frontends.mlir_worker.pool import lower
from mansard.frontends.mlir_worker.process import WorkerDiedError
from mansard.frontends.pytorch.calls.signature import ExportSignature
from mansard.frontends.pytorch.checks import Check, is_assertion
from mansard.frontends.pytorch.culprit import culprit
from mansard.frontends.pytorch.export import quiet
from mansard.frontends.pytorch.locations import location_of
from mansard.frontends.pytorch.rewrites import rewrite
from mansard.frontends.pytorch.scalars import compute_in_tensors
from mansard.frontends.pytorch.supported_ops import SUPPORTED

_WHOLE_OPS = "aten.scaled_dot_product_attention,aten.flatten.using_ints,aten.unflatten.int"
"""Ops the torch backend pipeline must not decompose: attention has dedicated kernels, and the other two state
which dims a view merges or splits."""
_TO_BACKEND = (
    "func.func(torch-match-quantized-custom-ops), "
    f"torchdynamo-export-to-torch-backend-pipeline{{backend-legal-ops={_WHOLE_OPS}}}"
)
PIPELINES = (_TO_BACKEND, "torch-backend-to-linalg-on-tensors-backend-pipeline", PREPARE)
"""From torch-mlir's dialect to linalg on tensors as `mansard.frontends.linalg` imports it."""
_STATIC_ASSERTION = torch.ops.aten._assert_tensor_metadata.default
"""An assertion about a tensor's type, which torch.export has checked."""
PROBE_SECONDS = 10.0
"""CPU time of one op; the slowest that torch-mlir lowers takes some milliseconds."""


def lower_to_linalg(graph: torch.fx.Graph, signature: ExportSignature, checks: Sequence[Check] = ()) -> Any:
    """The graph as an MLIR module with one function ``main`` of ``signature``'s arguments and results.

    What is checked follows as further results.

    Raises UnsupportedOpError naming the torch op and its location in the model.
    """
    _remove_unused(graph, signature, checks)
    try:
        with quiet():
            compute_in_tensors(graph)
            rewrite(graph)
    except MansardError:
        raise
    except Exception as error:  # of torch, about an op's operands
        reason = f"{type(error).__name__}: {error}"
        raise ImportModelError(f"the exported graph cannot be rewritten for torch-mlir: {reason}") from error
    try:
        return parse(lower(torch_bytecode(graph), PIPELINES), new_context())
    except PipelineError as error:
        raise lowering_failure(error) from error
    except WorkerDiedError as error:
        raise _crash(graph, error) from error


def torch_bytecode(graph: torch.fx.Graph) -> bytes:
    """The graph as MLIR bytecode in the torch dialect. Raises UnsupportedOpError, ImportModelError."""
    from torch_mlir.extras.fx_importer import FxImporter

    context = new_context()
    importer = FxImporter(context=context)
    importer._cc = _located_cache(context)
    try:
        with quiet():
            importer.import_stateless_graph(graph, func_name="main")
    except Exception as error:
        raise _import_failure(graph, error) from error
    return bytecode(importer.module)


def _remove_unused(graph: torch.fx.Graph, signature: ExportSignature, checks: Sequence[Check]) -> None:
    """Remove results and placeholders that the signature does not have, and assertions."""
    (output,) = (n for n in graph.nodes if n.op == "output")
    output.args = ((*signature.results, *(check.node for check in checks)),)
    for node in reversed(list(graph.nodes)):
        if is_assertion(node) or node.target is _STATIC_ASSERTION:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.name in signature.dropped:
            graph.erase_node(node)


def _located_cache(context: Any) -> Any:
    """torch-mlir's per-context cache, with the node's location in the model as each op's location."""
    from torch_mlir import ir
    from torch_mlir.extras.fx_importer import ContextCache

    class LocatedCache(ContextCache):  # type: ignore[misc]
        __slots__ = ()

        def get_node_location(self, node: Any) -> Any:
            place = location_of(node)
            return ir.Location.name(place, context=context) if place else None

    return LocatedCache(context)


def _import_failure(graph: torch.fx.Graph, error: Exception) -> Exception:
    text = str(error)
    for candidate in graph.nodes:
        if candidate.op == "call_function" and str(candidate.target) in text:
            return UnsupportedOpError(
                str(candidate.target), location_of(candidate), f"{text.splitlines()[0]}; {SUPPORTED}"
            )
    return ImportModelError(f"torch-mlir cannot import the exported graph: {type(error).__name__}: {text}")


def _crash(graph: torch.fx.Graph, error: WorkerDiedError) -> Exception:
    """The error for a graph whose lowering ended the worker, naming the op that does so if there is one."""
    node = culprit(graph, _dies)
    if node is None:
        return ImportModelError(f"lowering the exported graph, torch-mlir {error}")
    name = str(node.target).removesuffix(".default")
    return UnsupportedOpError(name, location_of(node), f"lowering this op, torch-mlir {error}; {SUPPORTED}")


def _dies(graph: torch.fx.Graph) -> bool:
    """Whether lowering this part of a graph ends the worker."""
    try:
        lower(torch_bytecode(graph), PIPELINES, PROBE_SECONDS)
    except WorkerDiedError:
        return True
    except (PipelineError, CompileError):
        pass  # another failure than the one that is looked for
    return False


def lowering_failure(error: PipelineError) -> Exception:
    """The error that says which op failed, and where, as far as torch-mlir says so."""
    for diagnostic in error.diagnostics:
        name = _op_name(diagnostic)
        if name:
            return UnsupportedOpError(name, diagnostic.location, f"{diagnostic.no_lowering}; {SUPPORTED}")
    first = error.diagnostics[0]
    return ImportModelError(f"torch-mlir cannot lower the model at {first.location}: {first.message}")


def _op_name(diagnostic: Diagnostic) -> str:
    """The torch op a diagnostic is about: quoted in the message, or named by a ``torch.operator``."""
    operator = re.search(r'name = "torch\.([\w.]+)"', diagnostic.message + diagnostic.notes)
    if operator:
        return operator.group(1)
    quoted = re.search(r"'torch\.([\w.]+)'", diagnostic.message)
    return quoted.group(1) if quoted else ""
