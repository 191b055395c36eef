"""Buffers that a module also holds elsewhere, such as those of a cache object, are one tensor in the program.

torch.export lifts a tensor that it reaches through a plain object as a constant, even where it is a
registered buffer as well: what the program writes to the one would be missing in the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.export.graph_signature import ExportGraphSignature, InputKind

from mansard.frontends.pytorch.weights import identity

_HELD = (InputKind.BUFFER, InputKind.PARAMETER)
_ALIASES = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def merge_aliases(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with each tensor that it has twice there once, as the buffer or parameter; itself if it has
    none."""
    same = _aliases(program)
    if not same:
        return program
    graph = torch.fx.Graph()
    copied: dict[Any, Any] = {}
    output = graph.graph_copy(program.graph, copied)
    graph.output(output).meta.update(_output(program.graph).meta)
    placeholders = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    for alias, name in same.items():
        placeholders[alias].replace_all_uses_with(placeholders[name])
        graph.erase_node(placeholders[alias])
    signature = program.graph_signature
    specs = [spec for spec in signature.input_specs if spec.arg.name not in same]
    merged = {str(spec.target) for spec in signature.input_specs if spec.arg.name in same}
    with warnings.catch_warnings():  # torch's own code does what it deprecates
        warnings.simplefilter("ignore")
        return program._update(
            torch.fx.GraphModule(program.graph_module, graph),
            ExportGraphSignature(specs, list(signature.output_specs)),
            state_dict={name: t for name, t in program.state_dict.items() if name not in merged},
            constants={name: t for name, t in program.constants.items() if name not in merged},
        )


def partial_alias(program: torch.export.ExportedProgram) -> tuple[str, str] | None:
    """The names of two tensors of a program, one of them a buffer, that share a part of their memory."""
    last, end, is_buffer = "", 0, False
    for begin, size, kind, name in sorted(
        (t.data_ptr(), _extent(t), k.name, n) for k, _, n, t in _tensors(program)
    ):
        if begin < end and (is_buffer or kind == "BUFFER"):
            return last, name
        if begin + size > end:
            last, end, is_buffer = name, begin + size, kind == "BUFFER"
    return None


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to behind its last one."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(steps) + 1) * int(tensor.dtype.itemsize)


def _aliases(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Maps placeholders of buffers and constants to those of earlier or better names for the same tensors."""
    known: dict[tuple[Any, ...], str] = {}
    for kind, place, _, tensor in _tensors(program):
        if kind in _HELD:
            known.setdefault(identity(tensor), place)
    return {
        place: known[identity(tensor)]
        for kind, place, _, tensor in _tensors(program)
        if kind in _ALIASES and known.get(identity(tensor), place) != place
    }


def _tensors(program: torch.export.ExportedProgram) -> Iterator[tuple[InputKind, str, str, torch.Tensor]]:
    """The tensors that the program holds: kind, placeholder, name and data of each."""
    held = {**program.constants, **program.state_dict}
    for spec in program.graph_signature.input_specs:
        tensor = held.get(str(spec.target))
        if isinstance(tensor, torch.Tensor) and not tensor.is_meta and tensor.numel():
            yield spec.kind, spec.arg.name, str(spec.target), tensor


def _output(graph: torch.fx.Graph) -> Any:
    (node,) = (n for n in graph.nodes if n.op == "output")
    return node
