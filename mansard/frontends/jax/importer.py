"""The import pipeline of JAX functions: lowered by JAX, then the rules of StableHLO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax import export
from jax.extend import source_info_util

from mansard.arguments import names as checked_names
from mansard.arguments import shown
from mansard.dims import Dim
from mansard.errors import ImportModelError
from mansard.frontends.jax.interface import interface_of
from mansard.frontends.jax.sizes import Sizes
from mansard.frontends.stablehlo import attributes
from mansard.frontends.stablehlo.importer import Input, argument_names, import_module, path_name
from mansard.frontends.stablehlo.reading import parsed
from mansard.ir.graph import Graph


def import_jax(
    model: Any,
    example_inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dims: Mapping[str, Dim | int] | None = None,
    input_names: Sequence[str] | None = None,
) -> Graph:
    """Import a function, a jitted one, a ``jax.stages.Lowered``, an ``Exported`` or its serialised file.

    A function is lowered for the example inputs: positional arguments (a sequence, or one of them) and
    ``kwargs``, each an array, a ``jax.ShapeDtypeStruct``, a number, or a nest of them. Sizes that are
    symbolic (``jax.export.symbolic_shape``) become the Graph's dims; ``dims`` gives ranges or values for
    them, by name: ``{"b": Dim("b", 1, 64)}``. Arrays that the function closes over are weights. Inputs are
    called after its parameters, with the path in a nest (``x``, ``params.dense.w``), or ``input_names``;
    outputs after their path in the result.

    Raises ImportModelError for a function that JAX cannot trace or an artifact that it cannot read, and
    UnsupportedOpError, naming all of them, for ops without a rule.
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ImportModelError(f"kwargs={shown(kwargs)}: it takes a mapping by parameter name")
    if isinstance(example_inputs, Mapping):
        example_inputs, kwargs = None, {**example_inputs, **(kwargs or {})}
    names = None
    if input_names is not None:
        names = list(checked_names("input_names", input_names, ImportModelError, "x"))
    sizes = Sizes(dims or {})
    if isinstance(model, (str, Path)):
        model = _loaded(Path(model))
    if isinstance(model, export.Exported):
        _no_examples(example_inputs, kwargs)
        return _exported(model, sizes, names)
    if isinstance(model, jax.stages.Lowered):
        _no_examples(example_inputs, kwargs)
        return _lowered(model, None, sizes, names)
    lowered = _lower(model, _positional(example_inputs), dict(kwargs or {}))
    return _lowered(lowered, model, sizes, names)


def _positional(example_inputs: Any) -> tuple[Any, ...]:
    if example_inputs is None:
        return ()
    return tuple(example_inputs) if isinstance(example_inputs, (list, tuple)) else (example_inputs,)


def _no_examples(example_inputs: Any, kwargs: Any) -> None:
    if example_inputs is not None or kwargs:
        raise ImportModelError(
            "an exported or lowered function states its shapes; it takes no example inputs"
        )


def _loaded(path: Path) -> Any:
    try:
        return export.deserialize(bytearray(path.read_bytes()))
    except OSError as error:
        raise ImportModelError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # JAX raises whatever its reader of flatbuffers does
        raise ImportModelError(f"{path} is not what jax.export serialises: {error}") from error


def _lower(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source_info_util.register_exclusion(str(Path(__file__).parents[2]))  # ops come from lines of the user
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    try:
        return jitted.lower(*args, **kwargs)
    except Exception as error:  # whatever the function or JAX raises while it is traced
        raise ImportModelError(f"JAX cannot trace the function: {type(error).__name__}: {error}") from error


def _lowered(lowered: Any, called: Any, sizes: Sizes, names: list[str] | None) -> Graph:
    """A lowered function, whose module JAX holds in memory; ``called`` is the function, where it is known."""
    module = lowered.compiler_ir("stablehlo")
    avals = jax.tree_util.tree_leaves(lowered.in_avals)
    function = next(
        v.operation for v in module.body.operations if attributes.stated(v.operation, "sym_name") == '"main"'
    )
    arguments = list(function.regions[0].blocks[0].arguments)
    symbols = _global_constants(function, len(arguments))
    kept = lowered._lowering.compile_args.get("kept_var_idx", range(len(avals)))
    taken = [i for i in range(len(avals)) if i in kept]
    if len(taken) + len(symbols) != len(arguments):
        raise ImportModelError(
            f"the lowered function takes {len(arguments)} arguments for {len(taken)} inputs; effects and "
            "references are not supported"
        )
    labels = names or _labels(lowered.in_avals, arguments[len(symbols) :], taken)
    inputs = _inputs(avals, labels, taken, sizes)
    dims = [Input(name, size=sizes.resolve(name)) for name in symbols]
    sizes.check_used("function")
    graph = import_module(
        module, [*dims, *inputs], name=_name(attributes.stated(module.operation, "sym_name"))
    )
    return replace(graph, interface=interface_of(called, lowered.in_tree, lowered.out_tree))


def _global_constants(function: Any, count: int) -> list[str]:
    """The names of the leading arguments that are symbolic sizes."""
    stated = list(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else []
    marked = [str(a) for a in stated[:count] if "jax.global_constant" in str(a)]
    return [text.split('jax.global_constant = "')[1].split('"')[0] for text in marked]


def _inputs(avals: Sequence[Any], labels: Sequence[str], taken: Sequence[int], sizes: Sizes) -> list[Input]:
    if len(labels) != len(avals):
        raise ImportModelError(f"{len(labels)} input names for {len(avals)} inputs")
    return [
        Input(
            label,
            sizes.shape(aval.shape),
            attributes.element_type(_type_text(aval), "input", label),
            taken=number in taken,
        )
        for number, (label, aval) in enumerate(zip(labels, avals, strict=True))
    ]


def _labels(structure: Any, arguments: Sequence[Any], taken: Sequence[int]) -> list[str]:
    """The inputs' names: those of the module's arguments; of inputs that it does not take, their paths.

    ``structure`` is a nest ``(args, kwargs)``.
    """
    paths = [path[1:] for path, _ in jax.tree_util.tree_flatten_with_path(structure)[0]]
    labels = [path_name(jax.tree_util.keystr(path)).replace("output_", "arg") for path in paths]
    for number, label in zip(taken, argument_names(arguments), strict=True):
        if label.startswith("arg") and label[3:].isdigit():  # the module does not name it
            continue
        labels[number] = label
    return labels


def _type_text(aval: Any) -> str:
    """The element type of an abstract value in MLIR's words."""
    name = str(aval.dtype)
    words = {"bool": "i1", "bfloat16": "bf16", "float8_e4m3fn": "f8E4M3FN"}
    return words.get(name) or name.replace("uint", "ui").replace("int", "i").replace("float", "f")


def _name(text: str) -> str:
    plain = text.strip('"').removeprefix("jit_")
    return plain if plain.isidentifier() else "main"


def _exported(exported: Any, sizes: Sizes, names: list[str] | None) -> Graph:
    """An exported function, whose module is a portable artifact."""
    module = parsed(bytes(exported.mlir_module_serialized))
    functions = {
        attributes.word(v.operation.attributes["sym_name"]): v.operation for v in module.body.operations
    }
    kept = list(exported.module_kept_var_idx)
    if len(functions["main"].regions[0].blocks[0].arguments) != len(kept):
        raise ImportModelError("the exported function has effects, which are not supported")
    named = functions.get("_wrapped_jax_export_main", functions["main"])
    arguments = list(named.regions[0].blocks[0].arguments)[-len(kept) :] if kept else []
    avals = list(exported.in_avals)
    structure = jax.tree_util.tree_unflatten(exported.in_tree, range(len(avals)))
    inputs = _inputs(avals, names or _labels(structure, arguments, kept), kept, sizes)
    sizes.check_used("function")
    graph = import_module(module, inputs, name=_name(str(exported.fun_name)))
    return replace(graph, interface=interface_of(None, exported.in_tree, exported.out_tree))
