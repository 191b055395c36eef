"""A Graph in files: its text, and the data of its constants as safetensors beside it.

``model.mir`` is what `mansard.ir.printer` prints; ``model.safetensors`` holds constants by the names of their
values. Weights from elsewhere are found by the constants' keys, which for a model of PyTorch are the names of
its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mansard.artifact.weights import SAFETENSORS_NAMES, chunks, lay_out, weight_bytes
from mansard.dtypes import DType
from mansard.errors import CompileError, ImportModelError
from mansard.formats.safetensors_file import StoredTensor, read_safetensors
from mansard.ir.graph import Graph
from mansard.ir.parser import parse_graph
from mansard.ir.printer import print_graph
from mansard.ir.types import Constant, Value
from mansard.plan.plan import WeightSpec

Array = npt.NDArray[np.generic]
_SHOWN = 3
"""Constants that an error names."""


def write_graph(graph: Graph, path: Path, *, weights: bool = False) -> Path | None:
    """Write the text of a graph, with ``weights`` also the data of its constants; returns that file."""
    path.write_text(print_graph(graph, locations=True), encoding="utf-8")
    if not weights:
        return None
    file = weights_file(path)
    data = [(_spec(value, constant), constant.load) for value, constant in _constants(graph)]
    layout = lay_out([spec for spec, _ in data])
    with file.open("wb") as stream:
        for chunk in chunks(layout, data):
            stream.write(chunk)
    return file


def read_graph(path: Path, weights: Path | None = None) -> Graph:
    """A graph that `write_graph` wrote, edited or not. ``weights`` replaces the file beside it.

    Raises ImportModelError for files that cannot be read and for constants without data, GraphSyntaxError
    with line and column for text that is no graph, VerificationError for one that breaks the IR's rules.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ImportModelError(f"cannot read {path}: {error}") from error
    default = weights_file(path)
    if weights is None and default.exists():
        weights = default
    return bind_weights(parse_graph(text), weights, str(path))


def weights_file(path: Path) -> Path:
    """Where the weights of a graph's file are."""
    return path.with_suffix(".safetensors")


def bind_weights(graph: Graph, weights: Path | None, source: str) -> Graph:
    """The graph with the data of its constants from a safetensors file; ``source`` is what errors call it."""
    wanted = list(_constants(graph))
    if not wanted:
        return graph
    tensors = read_safetensors(weights) if weights is not None else {}
    missing = [
        (value, constant) for value, constant in wanted if not {value.name, constant.key} & set(tensors)
    ]
    if missing:
        shown = ", ".join(f'{value} "{constant.key}"' for value, constant in missing[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        where = f"no data in {weights}" if weights is not None else "no weights file"
        raise ImportModelError(
            f"constants of {source} have {where}: {shown}{more}; name a safetensors file that holds them by "
            f"name or key: --weights FILE (weights=FILE). `mansard compile --stop-after PASS --with-weights` "
            f"writes one beside the graph"
        )
    bound = {
        value: _bound(value, constant, weights, tensors.get(value.name) or tensors[constant.key])
        for value, constant in wanted
    }
    return replace(
        graph,
        constants={value: bound[value] for value in graph.constants},
        states=tuple(replace(s, initial=bound.get(s.before)) for s in graph.states),
    )


def _constants(graph: Graph) -> Iterator[tuple[Value, Constant]]:
    """Constants and the initial contents of states, by the value that has their type."""
    yield from graph.constants.items()
    for state in graph.states:
        if state.initial is not None:
            yield state.before, state.initial


def _spec(value: Value, constant: Constant) -> WeightSpec:
    shape = tuple(extent for extent in value.type.shape if isinstance(extent, int))
    if len(shape) != value.type.rank:
        raise CompileError(f"constant {value} has a symbolic dim, so its data cannot be written")
    return WeightSpec(value.name, value.type.dtype, shape, constant.key)


def _bound(value: Value, constant: Constant, file: Path | None, tensor: StoredTensor) -> Constant:
    """The constant over a tensor. A reshaped constant has the key of its source, so shapes may differ."""
    spec = _spec(value, constant)
    name = SAFETENSORS_NAMES.get(spec.dtype, "U8")
    if tensor.type_name != name or tensor.data.size != weight_bytes(spec):
        raise ImportModelError(
            f"{file} holds {tensor.type_name}{list(tensor.shape)} for constant {value}, "
            f"which is {name}{list(spec.shape)} ({value.type})"
        )
    return Constant(constant.key, _loader(tensor, spec))


def _loader(tensor: StoredTensor, spec: WeightSpec) -> Callable[[], Array]:
    def load() -> Array:
        stored = tensor.data
        flat = stored.view(spec.dtype.numpy) if spec.dtype.bits >= 8 else _unpack_nibbles(stored, spec)
        return flat.reshape(spec.shape)

    return load


def _unpack_nibbles(packed: npt.NDArray[np.uint8], spec: WeightSpec) -> Array:
    """Elements of four bits, of which the first of two is in the low half of a byte."""
    nibbles = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(-1)[: int(np.prod(spec.shape))]
    if spec.dtype is DType.I4:
        nibbles = ((nibbles ^ 8).astype(np.int8) - 8).astype(np.int8)
    return nibbles.astype(spec.dtype.numpy)
