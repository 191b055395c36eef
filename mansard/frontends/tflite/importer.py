"""The import pipeline of ``.tflite`` models: reading, then rules operator by operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard import dims as dim_expressions
from mansard.dims import Dim, DimLike
from mansard.errors import ImportModelError, UnsupportedOpError, VerificationError
from mansard.frontends.emission.emitter import SizesDifferError
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.unsupported import joined
from mansard.frontends.linalg.cleanup import clean
from mansard.frontends.tflite import rules
from mansard.frontends.tflite.entries import Entry
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.model import Signature, Subgraph, TfliteModel, read_model
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.verify import verify

AUTOMATIC_MAX = 2**31 - 1
"""Upper bound of a dim without a stated range."""


def import_tflite(
    model: Any,
    dims: Mapping[str, Dim | int] | None = None,
    constants: Mapping[str, npt.ArrayLike] | None = None,
    signature: str | None = None,
) -> Graph:
    """Import the path of a ``.tflite`` file, or its bytes.

    Inputs and outputs have the names of ``signature`` (by default the only one, or ``serving_default``; its
    key), or else those of the file's tensors. Sizes that the file leaves open (-1) become dims called after
    their input and axis, ``x_0``; inputs of equal rank share those of an axis under the first input's name,
    and so do sizes that operators need to be equal. ``dims`` gives ranges or values for them, by the name of
    any input that has them:
    ``{"x_0": Dim("batch", 1, 64)}``. ``constants`` gives inputs that are not inputs of the compiled model, by
    name. Weights stay mapped from the file.

    Raises ImportModelError for a file that cannot be read, UnsupportedOpError, naming all of them, for
    operators without a rule.
    """
    rules.load()
    read = read_model(model)
    entry_point = _signature(read, signature)
    equal: dict[DimLike, DimLike] = {}
    while True:
        try:
            return _imported(read, entry_point, dims or {}, constants or {}, equal)
        except ImportModelError as error:
            if not _unify(equal, error.__cause__, read.subgraphs[entry_point.subgraph], entry_point):
                raise


def _unify(
    equal: dict[DimLike, DimLike], cause: BaseException | None, subgraph: Subgraph, signature: Signature
) -> bool:
    """Note that a size that the file leaves open is equal to another, if that is what failed."""
    if not isinstance(cause, SizesDifferError):
        return False
    automatic = {_automatic(name) for _, _, name in _opened(subgraph, _names(subgraph, signature))}
    for old, new in ((cause.right, cause.left), (cause.left, cause.right)):
        if old in automatic and old not in equal:
            equal[old] = new
            return True
    return False


def _imported(
    read: TfliteModel,
    entry_point: Signature,
    dims: Mapping[str, Dim | int],
    constants: Mapping[str, npt.ArrayLike],
    equal: Mapping[DimLike, DimLike],
) -> Graph:
    subgraph = read.subgraphs[entry_point.subgraph]
    importer = GraphImporter(read)
    inputs = _inputs(importer, subgraph, entry_point, dims, constants, equal)
    results = importer.run(subgraph.index, inputs)
    if importer.problems:
        raise joined(importer.problems)
    tensors = [_output(entry, subgraph, i) for entry, i in zip(results, subgraph.outputs, strict=True)]
    outputs = [importer.value(t) for t in tensors]
    importer.variables.finish(importer)
    try:
        graph = clean(importer.builder.build(outputs, _output_names(subgraph, entry_point)))
        verify(graph)
    except VerificationError as error:  # types and shapes of the file that do not fit each other
        raise ImportModelError(f"the .tflite file's operators do not fit their operands: {error}") from error
    return graph


def _signature(model: TfliteModel, key: str | None) -> Signature:
    """The signature that is asked for; without any, one with the names of subgraph 0."""
    by_key = {s.key: s for s in model.signatures}
    if key is not None:
        if key not in by_key:
            have = ", ".join(sorted(by_key)) or "none"
            raise ImportModelError(f"the model has no signature {key!r}; it has: {have}")
        return by_key[key]
    if len(by_key) == 1:
        return model.signatures[0]
    return by_key.get("serving_default") or Signature("", 0, {}, {})


def _inputs(
    importer: GraphImporter,
    subgraph: Subgraph,
    signature: Signature,
    given: Mapping[str, Dim | int],
    constants: Mapping[str, npt.ArrayLike],
    equal: Mapping[DimLike, DimLike],
) -> list[Entry]:
    names = _names(subgraph, signature)
    unknown = set(constants) - set(names.values())
    if unknown:
        raise ImportModelError(f"the model has no input {sorted(unknown)[0]!r} to be a constant")
    sizes = _sizes(subgraph, names, given, equal)
    entries: list[Entry] = []
    for i in subgraph.inputs:
        info, name = subgraph.tensors[i], names[i]
        if name in constants:
            content = np.asarray(constants[name]).astype(info.dtype.numpy)
            entries.append(Tensor(content.shape, info.dtype, content=content, name=name))
            continue
        declared = importer.builder.input(name, sizes[i], info.dtype)
        importer.origins[declared] = name
        entries.append(importer.tensor(declared))
    return entries


def _names(subgraph: Subgraph, signature: Signature) -> dict[int, str]:
    """The names of inputs."""
    return {i: signature.inputs.get(i, subgraph.tensors[i].name) for i in subgraph.inputs}


def _opened(subgraph: Subgraph, names: Mapping[int, str]) -> list[tuple[int, int, str]]:
    """Inputs, axes and names of the sizes that the file leaves open."""
    return [
        (i, axis, f"{names[i]}_{axis}")
        for i in subgraph.inputs
        for axis, size in enumerate(subgraph.tensors[i].signature)
        if size < 0
    ]


def _automatic(name: str) -> DimLike:
    """The dim of an open size about which nothing was said."""
    return dim_expressions.symbol(Dim(_identifier(name), 1, AUTOMATIC_MAX))


def _sizes(
    subgraph: Subgraph,
    names: Mapping[int, str],
    given: Mapping[str, Dim | int],
    equal: Mapping[DimLike, DimLike],
) -> dict[int, tuple[DimLike, ...]]:
    """The shapes of inputs: sizes that are open share a dim with the same axis of inputs of the same rank,
    and with what operators have to find ``equal``."""
    opened = _opened(subgraph, names)
    chosen: dict[str, DimLike] = {
        name: size if isinstance(size, int) else dim_expressions.symbol(size) for name, size in given.items()
    }
    shared: dict[tuple[int, int], DimLike] = {}
    for i, axis, name in opened:
        if name in chosen:
            shared.setdefault((len(subgraph.tensors[i].shape), axis), chosen[name])
    shapes: dict[int, list[DimLike]] = {i: list(subgraph.tensors[i].shape) for i in subgraph.inputs}
    for i, axis, name in opened:
        key = (len(shapes[i]), axis)
        if name not in chosen and key not in shared:
            shared[key] = _automatic(name)
        size = chosen[name] if name in chosen else shared[key]
        while size in equal:
            size = equal[size]
        shapes[i][axis] = size
    unknown = set(given) - {name for _, _, name in opened}
    if unknown:
        have = ", ".join(name for _, _, name in opened) or "none"
        raise ImportModelError(f"the model has no symbolic dim {sorted(unknown)[0]!r}; it has: {have}")
    return {i: tuple(shape) for i, shape in shapes.items()}


def _identifier(name: str) -> str:
    """A dim's name in Mansard: letters, digits and underscores."""
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return text if text[:1].isalpha() or text[:1] == "_" else f"d_{text}"


def _output(entry: Entry, subgraph: Subgraph, index: int) -> Tensor:
    if not isinstance(entry, Tensor):
        what, name = type(entry).__name__.lower(), subgraph.tensors[index].name
        raise UnsupportedOpError(f"tflite.{what}", name, f"output {name!r} is a {what}, not a tensor")
    return entry


def _output_names(subgraph: Subgraph, signature: Signature) -> list[str]:
    by_tensor: dict[int, list[str]] = {}
    for name, tensor in signature.outputs.items():
        by_tensor.setdefault(tensor, []).append(name)
    taken: set[str] = set()
    names = []
    for i in subgraph.outputs:
        stated = by_tensor.get(i)
        names.append(fresh_name(taken, stated.pop(0) if stated else subgraph.tensors[i].name))
    return names
