"""The import pipeline of ONNX models: reading, then rules node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dims import Dim
from mansard.errors import CompileError, ImportModelError, UnsupportedOpError
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.unsupported import ContentNeededError, joined
from mansard.frontends.linalg.cleanup import clean
from mansard.frontends.onnx import rules
from mansard.frontends.onnx.entries import Entry
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.reading import OnnxModel, read_model
from mansard.frontends.onnx.signature import Symbols, dims_of_results, stated_shapes, take_input
from mansard.ir.graph import Graph
from mansard.ir.verify import verify
from mansard.plan.interface import Interface, Structure


def import_onnx(
    model: Any,
    dims: Mapping[str, Dim | int] | None = None,
    constants: Mapping[str, npt.ArrayLike] | None = None,
) -> Graph:
    """Import the path of an ``.onnx`` file, or an ``onnx.ModelProto``.

    Symbolic dims (``dim_param``) become the Graph's dims; ``dims`` gives ranges or values for them, by name:
    ``{"batch": 1, "sequence": Dim("sequence", 1, 512)}``. A dim that the model leaves open without a name is
    called after its input and axis: ``x_0``. ``constants`` gives inputs of the model that are not inputs of
    the compiled one, by name: what decides a shape, such as the axes of a reduction, has to be known.
    Weights, also in external files, are read when they are needed.

    Raises ImportModelError for a model that cannot be read, UnsupportedOpError, naming all of them, for ops
    without a rule.
    """
    rules.load()
    read = read_model(model)
    opsets = {entry.domain: entry.version for entry in read.proto.opset_import}
    local = {(f.domain, f.name): f for f in read.proto.functions}
    importer = GraphImporter(read.name, opsets, local)
    _bind_inputs(importer, read, dims or {}, constants or {})
    importer.stated = stated_shapes(read.proto.graph, dims or {})
    names = [value.name for value in read.proto.graph.output]
    importer.only_returned = frozenset(names) - _read_names(read.proto.graph)
    importer.run(read.proto.graph.node)
    if importer.problems:
        raise _joined(importer.problems)
    outputs = [_output(importer, name, importer.find(name)) for name in names]
    sizes = {name: importer.sizes[name] for name in names if name in importer.sizes}
    outputs += [importer.value(count) for _, count in sizes.values()]
    lengths = [f"{name}.shape[{axis}]" for name, (axis, _) in sizes.items()]
    graph = clean(importer.builder.build(outputs, [*names, *lengths]))
    verify(graph)
    return replace(graph, interface=_interface(names, sizes)) if sizes else graph


def _interface(names: Sequence[str], sizes: Mapping[str, tuple[int, Any]]) -> Interface:
    """Results with the sizes that follow them."""
    places = {name: len(names) + number for number, name in enumerate(sizes)}
    results = tuple(
        Structure("tensor", number, sizes=((sizes[name][0], places[name]),) if name in sizes else ())
        for number, name in enumerate(names)
    )
    return Interface(None, results[0] if len(results) == 1 else Structure("tuple", children=results))


def _read_names(graph: Any) -> frozenset[str]:
    """The names that nodes of a graph read, also in the graphs that they have as attributes."""
    found: set[str] = set()
    for node in graph.node:
        found.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found |= _read_names(inner)
                found.update(value.name for value in inner.output)
    return frozenset(found)


def _bind_inputs(
    importer: GraphImporter,
    model: OnnxModel,
    dims: Mapping[str, Dim | int],
    constants: Mapping[str, npt.ArrayLike],
) -> None:
    graph = model.proto.graph
    initialisers = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in initialisers]
    unknown = set(constants) - {value.name for value in inputs}
    if unknown:
        raise ImportModelError(f"the model has no input {sorted(unknown)[0]!r} to be a constant")
    symbols = Symbols(dims, graph)
    for value in inputs:
        shape, dtype = take_input(value, symbols)
        if value.name in constants:
            content = np.asarray(constants[value.name]).astype(dtype.numpy)
            importer.bind(value.name, Tensor(content.shape, dtype, content=content, name=value.name))
            continue
        declared = importer.builder.input(value.name, shape, dtype)
        importer.origins[declared] = value.name
        importer.bind(value.name, importer.tensor(declared))
    symbols.check_used(known=dims_of_results(graph))
    importer.initialise(graph, model.folder)


def _output(importer: GraphImporter, name: str, entry: Entry) -> Any:
    if not isinstance(entry, Tensor):
        what = type(entry).__name__.lower()
        raise UnsupportedOpError(f"onnx.{what}", name, f"output {name!r} is a {what}, not a tensor")
    return importer.value(entry)


def _joined(problems: Sequence[UnsupportedOpError]) -> CompileError:
    """One error that names everything that is not supported."""
    distinct = list({str(problem): problem for problem in problems}.values())
    needed = [p for p in distinct if isinstance(p, ContentNeededError) and p.inputs]
    if needed and len(distinct) > 1:  # what else is not supported may follow from what is not known
        inputs = sorted({name for problem in needed for name in problem.inputs})
        others = "; ".join(f"{p.op} at {p.location}: {p.detail}" for p in distinct if p not in needed)
        return ContentNeededError(
            needed[0].op,
            needed[0].location,
            needed[0].what,
            None,
            inputs,
            f"; also {others}" if others else "",
        )
    return joined(distinct)
