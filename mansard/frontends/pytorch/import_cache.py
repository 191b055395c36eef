"""The disk cache of imported graphs: for a cached program, the steps after the export are skipped.

The key is everything that an import reads: nodes with their arguments and locations, signature, ranges of
dims, types and aliasing of weights, and the data of constant tensors. An import does not read the data of
parameters and buffers; a stored graph refers to them by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mansard.cache import Folder, compiler_digest
from mansard.errors import ArtifactError
from mansard.frontends.pytorch.calls.signature import ExportSignature
from mansard.frontends.pytorch.checks import is_assertion
from mansard.frontends.pytorch.locations import location_of, source_line
from mansard.frontends.pytorch.sizes.constraints import guards
from mansard.frontends.pytorch.sizes.dynamic import STATED_ZERO, DimNames
from mansard.frontends.pytorch.sizes.symbols import divisions
from mansard.frontends.pytorch.weights import constant_of, identity
from mansard.ir.graph import Graph
from mansard.ir.graph_data import graph_from_bytes, graph_to_bytes
from mansard.ir.types import Constant

_NAMESPACES = frozenset({"aten", "prims", "prim"})
"""Namespaces of operators that torch's version defines; others may be defined by the user's program."""
_MODULES = ("_operator", "math", "torch", "builtins")
_CONSTANT_BYTES = 16 << 20


class CachedImport:
    """The cache entry of one program's graph."""

    def __init__(self, folder: Folder, key: str, program: torch.export.ExportedProgram) -> None:
        self._folder, self._key, self._tensors = folder, key, _tensors(program)

    def load(self) -> Graph | None:
        """The stored graph bound to the program's weights, or None."""
        data = self._folder.get(self._key)
        if data is None:
            return None
        by_identity: dict[tuple[Any, ...], Constant] = {}
        constants = {}
        for name, tensor in self._tensors.items():
            held = by_identity.get(identity(tensor)) or constant_of(tensor, name)
            constants[name] = by_identity[identity(tensor)] = held
        try:
            return graph_from_bytes(data, constants)
        except ArtifactError:
            return None

    def save(self, graph: Graph, signature: ExportSignature, program: torch.export.ExportedProgram) -> None:
        """Store the graph that was imported from the decomposed program."""
        after = _tensors(program)
        names = {
            a.constant: a.name
            for a in signature.arguments
            if a.constant is not None
            and a.name in self._tensors
            and identity(self._tensors[a.name]) == identity(after[a.name])
        }
        data = graph_to_bytes(graph, names)
        if data is not None:
            self._folder.put(self._key, data)
            self._folder.trim()


def cached_import(
    program: torch.export.ExportedProgram,
    dim_names: DimNames,
    input_names: Sequence[str] | None,
    name: str,
) -> CachedImport | None:
    """The cache entry of an exported program; None for a program without a reliable key."""
    digest = hashlib.sha256(compiler_digest().encode())
    constants = [t for t in program.constants.values() if isinstance(t, torch.Tensor)]
    if sum(t.numel() * t.element_size() for t in constants) > _CONSTANT_BYTES:
        return None
    for line in _describe(program, dim_names, input_names, name):
        if line is None:
            return None
        digest.update(line.encode() + b"\0")
    for tensor in constants:
        if not tensor.is_meta:
            digest.update(constant_of(tensor, "").load().tobytes())
    return CachedImport(Folder("imports"), digest.hexdigest(), program)


def _tensors(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Parameters, buffers and constants by name; the first of two with the same name, as in the importer."""
    held: dict[str, torch.Tensor] = {}
    for source in (program.state_dict, program.constants):
        for name, tensor in source.items():
            if isinstance(tensor, torch.Tensor):
                held.setdefault(name, tensor)
    return held


def _describe(
    program: torch.export.ExportedProgram,
    dim_names: DimNames,
    input_names: Sequence[str] | None,
    name: str,
) -> list[str | None]:
    lines: list[str | None] = [name, repr(input_names), str(torch.get_default_dtype())]
    lines.append(str(torch.are_deterministic_algorithms_enabled()))
    lines += [f"{place} {_dim_text(dim)}" for place, dim in sorted(dim_names.items())]
    lines.append(str(divisions(program)))
    lines += [f"{s} {r.lower} {r.upper}" for s, r in program.range_constraints.items()]
    lines.append(str(program.graph_signature))
    lines += [str(program.call_spec), *guards(program)]
    numbers: dict[tuple[Any, ...], int] = {}
    for key, tensor in _tensors(program).items():
        same = numbers.setdefault(identity(tensor), len(numbers))
        lines.append(f"{key} {same} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.device}")
    lines += _graph_lines(program.graph_module)
    return lines


def _dim_text(dim: Any) -> str:
    root = getattr(dim, "root", None)
    limits = f"{getattr(dim, 'min', None)} {getattr(dim, 'max', None)} {getattr(dim, STATED_ZERO, False)}"
    return f"{dim.__name__} {limits}" + (f" of {_dim_text(root)}" if root is not None else "")


def _graph_lines(module: torch.fx.GraphModule) -> list[str | None]:
    """Nodes of a graph and of the graphs inside it; with None for a user-defined operator."""
    lines: list[str | None] = []
    for node in module.graph.nodes:
        if node.op == "call_function" and not _is_known(node.target):
            return [None]
        lines.append(f"{node.format_node()} {_value_text(node.meta.get('val'))} {location_of(node)}")
        if is_assertion(node):
            lines.append(source_line(node))
        if node.op == "get_attr":
            inner = getattr(module, str(node.target), None)
            lines += _graph_lines(inner) if isinstance(inner, torch.fx.GraphModule) else [None]
    return lines


def _is_known(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in _NAMESPACES
    return str(getattr(target, "__module__", "")).split(".")[0] in _MODULES


def _value_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride()}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_value_text(v)}" for k, v in value.items())
    return str(value)
