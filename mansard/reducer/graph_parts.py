"""Parts of a Graph: some of its ops, with what they read from elsewhere as inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mansard.errors import MansardError
from mansard.ir.graph import Graph
from mansard.ir.graph_file import write_graph
from mansard.ir.ops import Op
from mansard.ir.types import Value
from mansard.ir.verify import verify
from mansard.reducer.trial import inputs_file, save_arrays

Arrays = Mapping[str, npt.NDArray[np.generic]]


def part_of(graph: Graph, ops: Sequence[Op]) -> Graph | None:
    """These ops: their results that none of them reads are the outputs. None if that is no valid Graph."""
    produced = {value for op in ops for value in op.outputs}
    read = dict.fromkeys(value for op in ops for value in op.inputs)
    outputs = [v for op in ops for v in op.outputs if v not in read or v in graph.outputs]
    states = tuple(s for s in graph.states if s.before in read or s.after in produced)
    held = {s.before for s in states} | {s.after for s in states}
    updated = {s.after for s in states if s.after in produced}
    states = tuple(s for s in states if s.after in produced)
    begun = {s.before for s in states}
    inputs = [v for v in read if v not in produced and v not in graph.constants and v not in begun]
    outputs = [v for v in dict.fromkeys(outputs) if v not in updated or v not in held]
    if not outputs and not updated:
        return None
    part = replace(
        graph,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        output_names=tuple(v.name for v in outputs),
        ops=tuple(ops),
        constants={v: c for v, c in graph.constants.items() if v in read},
        states=states,
        constraints=(),
        interface=None,
    )
    return valid(part)


def valid(graph: Graph) -> Graph | None:
    """The graph, if it keeps the IR's rules."""
    try:
        verify(graph)
    except (MansardError, ValueError, KeyError, TypeError):
        return None
    return graph


def write(graph: Graph, path: Path, values: Arrays) -> None:
    """Write a Graph with its weights, and those of its inputs that are known."""
    write_graph(graph, path, weights=True)
    known = {v.name: values[v.name] for v in graph.inputs if v.name in values}
    file = inputs_file(path)
    file.unlink(missing_ok=True)
    if known:
        save_arrays(
            file, {name: _fitted(known[v.name], v) for v in graph.inputs if (name := v.name) in known}
        )


def _fitted(array: npt.NDArray[np.generic], value: Value) -> npt.NDArray[np.generic]:
    """The array in the shape of a value whose sizes are known, cut off or repeated."""
    shape = value.type.shape
    if array.shape == shape or not all(isinstance(size, int) for size in shape):
        return array
    return np.resize(array, tuple(int(size) for size in shape))  # type: ignore[arg-type]
