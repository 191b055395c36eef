"""One try of a model, in a child process: imported, compiled, run, and compared with the interpreter."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.errors import UnsupportedOpError
from mansard.ir.graph import Graph
from mansard.ir.graph_file import read_graph, write_graph
from mansard.ir.interpreter.graph import interpret
from mansard.ir.types import Value

Array = npt.NDArray[np.generic]
_TYPICAL = 4
"""The size tried of a dim that varies, within its range."""


def import_file(path: str, graph_path: str) -> dict[str, Any]:
    """Import a model and write its Graph with weights. Returns what went wrong."""
    from mansard.frontends import import_model

    try:
        graph = import_model(Path(path))
        write_graph(graph, Path(graph_path), weights=True)
    except Exception as error:
        return _record("import", error)
    return {}


def run_graph(path: str, devices: Sequence[str], tolerance: float) -> dict[str, Any]:
    """Compile a Graph's file for devices, run it on the inputs beside it, or random ones, and compare the
    results. Returns what went wrong."""
    import mansard

    graph = read_graph(Path(path))
    inputs = inputs_of(graph, Path(path))
    try:
        model = mansard.compile(Path(path), devices=list(devices), cache=False)
    except Exception as error:
        return _record("compile", error)
    try:
        with model:
            outputs = model(*inputs.values())
    except Exception as error:
        return _record("run", error)
    if isinstance(outputs, Mapping):
        outputs = tuple(outputs.values())
    results = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    expected = interpret(graph, inputs)
    for name, actual, reference in zip(graph.output_names, results, expected, strict=True):
        if text := _difference(np.asarray(actual), reference, tolerance):
            return {"stage": "run", "kind": "wrong", "message": f"{name}: {text}"}
    return {}


def record_values(path: str, file: str) -> None:
    """Interpret a Graph and write every value that an op gives, by name."""
    graph = read_graph(Path(path))
    inputs = inputs_of(graph, Path(path))
    values = [v for op in graph.ops for v in op.outputs]
    everything = Graph(
        graph.name, graph.inputs, tuple(values), graph.ops, graph.constants, graph.states,
        tuple(v.name for v in values), graph.parameters, graph.constraints,
    )  # fmt: skip
    results = interpret(everything, inputs)
    save_arrays(Path(file), {v.name: a for v, a in zip(values, results, strict=True)} | inputs)


# Inputs ---------------------------------------------------------------------------------------------------
def inputs_file(path: Path) -> Path:
    """Where the inputs of a Graph's file are, if they are not random."""
    return path.with_suffix(".npz")


def inputs_of(graph: Graph, path: Path) -> dict[str, Array]:
    """The arrays of a file's inputs by name: those beside it, else random ones, the same every time."""
    file = inputs_file(path)
    known: dict[str, Array] = dict(np.load(file)) if file.exists() else {}
    sizes = _sizes(graph, known)
    result = {}
    for value in graph.inputs:
        shape = value.type.concrete(sizes)
        held = known.get(value.name)
        result[value.name] = _random(value, shape) if held is None else _typed(held, value).reshape(shape)
    return result


def save_arrays(file: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays by name, those of types that NumPy's format lacks as bytes of their size."""
    np.savez(file, **{name: np.asarray(array) for name, array in arrays.items()})  # type: ignore[arg-type]


def _typed(array: Array, value: Value) -> Array:
    dtype = np.dtype(value.type.dtype.numpy)
    return array.view(dtype) if array.dtype.kind == "V" else array.astype(dtype)


def _sizes(graph: Graph, known: Mapping[str, Array]) -> dict[str, int]:
    sizes = {}
    for name, dim in graph.dims().items():
        wanted = max(dim.min, min(_TYPICAL, dim.max))
        sizes[name] = min(-(-wanted // dim.multiple) * dim.multiple, dim.max // dim.multiple * dim.multiple)
    for value in graph.inputs:
        held = known.get(value.name)
        for axis, size in enumerate(value.type.shape if held is not None else ()):
            if not isinstance(size, int) and str(size) in sizes and held is not None:
                sizes[str(size)] = held.shape[axis]
    return sizes


def _random(value: Value, shape: tuple[int, ...]) -> Array:
    """Standard normal floats, or integers 0 to 7."""
    generator = np.random.default_rng(zlib.crc32(value.name.encode()))
    if value.type.dtype.is_float:
        return np.asarray(generator.standard_normal(shape)).astype(value.type.dtype.numpy)
    top = 2 if value.type.dtype.numpy == np.dtype(np.bool_) else 8
    return np.asarray(generator.integers(0, top, shape)).astype(value.type.dtype.numpy)


# Results --------------------------------------------------------------------------------------------------
def _difference(actual: Array, expected: Array, tolerance: float) -> str:
    """What is wrong beyond a tolerance relative to the largest magnitude of floats; else nothing."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"is {actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind in "iub":
        wrong = actual != expected
    else:
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        finite = np.abs(b[np.isfinite(b)])
        allowed = tolerance * float(finite.max(initial=0.0))
        with np.errstate(invalid="ignore"):
            wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed))
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = f"{int(wrong.sum())} of {wrong.size} elements differ"
    return f"{count}, at {place}: {actual[place].item()!r}, the interpreter gives {expected[place].item()!r}"


def _record(stage: str, error: Exception) -> dict[str, Any]:
    op = error.op if isinstance(error, UnsupportedOpError) else ""
    name = type(error).__name__
    return {"stage": stage, "kind": "error", "name": name, "op": op, "message": str(error)[:2000]}


__all__ = ["dims", "import_file", "inputs_of", "record_values", "run_graph", "save_arrays"]
