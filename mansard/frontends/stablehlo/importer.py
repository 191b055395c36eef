"""The import pipeline of StableHLO modules: arguments, then rules op by op."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard import dims as sizes
from mansard.arguments import names as checked_names
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.emission.emitter import SizesDifferError
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.unsupported import joined
from mansard.frontends.linalg.cleanup import clean
from mansard.frontends.linalg.module import AUTOMATIC_MAX
from mansard.frontends.mlir_worker.passes import new_context, parse
from mansard.frontends.stablehlo import attributes, rules
from mansard.frontends.stablehlo.definitions import definition
from mansard.frontends.stablehlo.entries import Entry, Unsupported
from mansard.frontends.stablehlo.expansions import contracted
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.reading import read_module
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply
from mansard.ir.types import Constant
from mansard.ir.verify import verify


@dataclass(frozen=True)
class Input:
    """An argument of the entry function: an input of the model, or with ``constant`` a weight.

    ``size`` makes it a number that is a dim of the model; one that is not ``taken`` is an input of the model
    and no argument of the function.
    """

    name: str
    shape: tuple[DimLike, ...] = ()
    dtype: DType = DType.I32
    constant: Constant | None = None
    size: DimLike | None = None
    taken: bool = True


def import_stablehlo(
    source: str | bytes | Path,
    *,
    function: str = "main",
    input_names: Sequence[str] = (),
    dims: Mapping[str, Sequence[DimLike | Dim | None]] | None = None,
    constants: Mapping[str, npt.ArrayLike] | None = None,
) -> Graph:
    """Import StableHLO: text, bytecode, a portable artifact, or a file of one of them.

    ``function`` is the entry point (the only public function, when there is just one). Inputs are called as
    the module's locations call its arguments, or ``input_names``. ``dims`` gives, for an input, its sizes: a
    number, a `Dim`, or None for "as in the module"; sizes that the module leaves open become dims of their
    own, called after the input and axis (``x_0``), unless a `Dim` says that they are equal. ``constants``
    gives inputs of the module that are weights of the compiled model.

    Raises ImportModelError for what is no module, UnsupportedOpError, naming all of them, for ops without a
    rule.
    """
    module = read_module(source)
    functions = [v.operation for v in module.body.operations if v.operation.name == "func.func"]
    entry = _entry(functions, function)
    given = checked_names("input_names", input_names, ImportModelError, "x")
    described = _described(entry, list(given), dims or {}, constants or {})
    entry_name = attributes.word(entry.attributes["sym_name"])
    while True:
        try:
            return import_module(module, described, function=entry_name)
        except SizesDifferError as error:
            described = _unified(described, error)


def _unified(inputs: Sequence[Input], error: SizesDifferError) -> list[Input]:
    """The inputs with a size that the module left open replaced by what it must be equal to."""
    for old, new in ((error.right, error.left), (error.left, error.right)):
        automatic = any(
            old == sizes.symbol(Dim(f"{i.name}_{axis}", 1, AUTOMATIC_MAX))
            for i in inputs
            for axis in range(len(i.shape))
        )
        if automatic:
            return [replace(i, shape=tuple(new if d == old else d for d in i.shape)) for i in inputs]
    raise error


def import_module(
    module: Any,
    inputs: Sequence[Input],
    *,
    function: str = "main",
    name: str = "main",
    output_names: Sequence[str] = (),
) -> Graph:
    """Import a function of a module in memory, whose arguments ``inputs`` describe in order.

    Results are called as their ``jax.result_info`` says, or ``output_names``.
    """
    graph = _imported(module, inputs, function, name, output_names)
    if any(
        isinstance(op, Generic) and isinstance(op.body, Apply) and op.body.op == "exp" for op in graph.ops
    ):
        graph = contracted(graph, *_complementary_error())
        graph = clean(graph)
    verify(graph)
    return graph


@functools.cache
def _complementary_error() -> tuple[Graph, Graph]:
    """MLIR's definition of ``erfc`` for f32, and the function as it is imported."""
    element = [Input("x", (), DType.F32)]
    defined = definition("chlo.erfc", ["f32"], ["f32"])
    kind = "tensor<f32>"
    text = (
        f"func.func @main(%x: {kind}) -> {kind} {{ %y = chlo.erfc %x : {kind} -> {kind} return %y : {kind} }}"
    )
    itself = parse(text.encode(), new_context())
    first, second = (_imported(module, element, "main", "erfc", ()) for module in (defined, itself))
    return first, second


def _imported(
    module: Any, inputs: Sequence[Input], function: str, name: str, output_names: Sequence[str]
) -> Graph:
    rules.load()
    importer = StableHloImporter(name, module)
    entries: list[Entry] = []
    for argument in inputs:
        if argument.size is not None:
            entries.append(importer.dim_content([argument.size], (), argument.dtype))
        elif argument.constant is not None:
            entries.append(
                Tensor(argument.shape, argument.dtype, constant=argument.constant, name=argument.name)
            )
        else:
            declared = importer.builder.input(argument.name, argument.shape, argument.dtype)
            if argument.taken:
                entries.append(importer.tensor(declared))
    results = importer.call(function, entries)
    if importer.problems:
        raise joined(importer.problems)
    labels = list(output_names) or result_names(importer.functions[function], len(results))
    outputs = [importer.value(importer.tensor_of(r)) for r in results if not isinstance(r, Unsupported)]
    graph = clean(importer.builder.build(outputs, labels))
    if importer.constraints:
        graph = replace(graph, constraints=tuple(dict.fromkeys(importer.constraints)))
    return graph


# Signatures ---------------------------------------------------------------------------------
def _entry(functions: Sequence[Any], wanted: str) -> Any:
    by_name = {attributes.word(f.attributes["sym_name"]): f for f in functions}
    if wanted in by_name:
        return by_name[wanted]
    public = (
        [f for f in functions if "private" not in attributes.stated(f, "sym_visibility")]
        if (wanted == "main")
        else []
    )
    if len(public) == 1:
        return public[0]
    have = ", ".join(by_name) or "none"
    raise ImportModelError(f"the module has no function {wanted!r}; it has: {have}")


def _described(
    function: Any,
    names: list[str],
    dims: Mapping[str, Sequence[DimLike | Dim | None]],
    constants: Mapping[str, npt.ArrayLike],
) -> list[Input]:
    arguments = list(function.regions[0].blocks[0].arguments)
    if names and len(names) != len(arguments):
        raise ImportModelError(f"{len(names)} input names for {len(arguments)} inputs")
    stated = list(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else []
    labels = names or argument_names(arguments, stated)
    for given, what in ((dims, "dims"), (constants, "constants")):
        unknown = set(given) - set(labels)
        if unknown:
            raise ImportModelError(
                f"{what}: the model has no input {sorted(unknown)[0]!r}; it has: {', '.join(labels)}"
            )
    described: list[Input] = []
    for label, argument in zip(labels, arguments, strict=True):
        if not attributes.is_tensor(argument.type):
            raise UnsupportedOpError("input", label, f"{argument.type} is not a tensor")
        dtype = attributes.element_type(argument.type, "input", label)
        if label in constants:
            data = np.asarray(constants[label]).astype(dtype.numpy, copy=False)
            described.append(Input(label, data.shape, dtype, Constant.of(data, label)))
            continue
        sizes_stated = attributes.tensor_shape(argument.type)
        shape = _shape(label, sizes_stated, dims.get(label, [None] * len(sizes_stated)))
        described.append(Input(label, shape, dtype))
    return described


def _shape(
    label: str, stated: Sequence[int | None], wanted: Sequence[DimLike | Dim | None]
) -> tuple[DimLike, ...]:
    if len(wanted) != len(stated):
        raise ImportModelError(f"dims: {len(wanted)} sizes for input {label!r} of rank {len(stated)}")
    shape: list[DimLike] = []
    for axis, (d, w) in enumerate(zip(stated, wanted, strict=True)):
        if w is None:
            shape.append(d if d is not None else sizes.symbol(Dim(f"{label}_{axis}", 1, AUTOMATIC_MAX)))
        elif d is not None and w != d:
            raise ImportModelError(f"dims: axis {axis} of input {label!r} is {d} in the module, not {w}")
        else:
            shape.append(sizes.symbol(w) if isinstance(w, Dim) else w)
    return tuple(shape)


def argument_names(arguments: Sequence[Any], stated: Sequence[Any] = ()) -> list[str]:
    """The names of a function's arguments, by their locations or ``stated`` attributes.

    ``arg0``, ``arg1`` … where there are none.
    """
    labels: list[str] = []
    for number, argument in enumerate(arguments):
        named = re.match(r'loc\("([^"]+)"\)', str(argument.location))
        label = identifier(named.group(1)) if named else ""
        label = label or _index_path(str(stated[number]) if number < len(stated) else "")
        labels.append(label if label and label not in labels else f"arg{number}")
    return labels


def result_names(function: Any, count: int) -> list[str]:
    """The names of a function's results, by their attributes."""
    attributes_of = list(function.attributes["res_attrs"]) if "res_attrs" in function.attributes else []
    labels: list[str] = []
    for number in range(count):
        stated = str(attributes_of[number]) if number < len(attributes_of) else ""
        path = re.search(r'jax\.result_info = "((?:[^"\\]|\\.)*)"', stated)
        label = path_name(path.group(1).removeprefix("result")) if path else _index_path(stated)
        label = label or ("output" if count == 1 else f"output_{number}")
        labels.append(label if label not in labels else f"{label}_{number}")
    return labels


def _index_path(stated: str) -> str:
    """The path that TensorFlow states for an argument or a result, as a name."""
    path = re.search(r"tf_saved_model\.index_path = \[([^\]]*)\]", stated)
    return ".".join(re.findall(r"[\w.]+", path.group(1))) if path else ""


def path_name(path: str) -> str:
    """A path in a nest of containers, such as ``['y'][0].x``, as a name: ``y.0.x``."""
    parts = re.findall(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)|\[\\?\"([^\"\\]*)", path)
    text = ".".join(next(p for p in part if p) for part in parts if any(part))
    return f"output_{text}" if text[:1].isdigit() else text


def identifier(text: str) -> str:
    """A name of letters, digits, dots and underscores."""
    plain = re.sub(r"[^0-9A-Za-z_]+", ".", text).strip(".")
    return plain if plain[:1].isalpha() or plain[:1] == "_" else f"arg_{plain}" if plain else ""
