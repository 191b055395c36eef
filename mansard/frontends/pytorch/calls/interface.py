"""How an exported program was called, and what it returned, as the `Interface` of the model."""

from __future__ import annotations

import inspect
import json
import re
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from mansard.errors import ImportModelError
from mansard.plan.interface import Interface, Parameter, Structure, class_name

_PLAIN = (bool, int, float, str, type(None))


def interface_of(program: torch.export.ExportedProgram, module: torch.nn.Module | None) -> Interface:
    """The interface of a program, as exported; ``module`` is what was exported, where that is known.

    Without the module parameters have no defaults. Raises ImportModelError for structures that are too deep.
    """
    positional, named = program.call_spec.in_spec.children()
    inputs = iter(_inputs(program))
    try:
        args = [_structure(spec, inputs) for spec in positional.children()]
        kwargs = {
            name: _structure(spec, inputs) for name, spec in zip(named.context, named.children(), strict=True)
        }
        result = _structure(program.call_spec.out_spec, iter(_outputs(program)))
    except RecursionError:
        raise ImportModelError("the model's arguments or results are nested too deeply") from None
    return Interface(_parameters(program, module, args, kwargs), result)


def output_paths(program: torch.export.ExportedProgram) -> list[str]:
    """A name for each flattened output: its keys in the model's output, joined by dots."""
    result: list[str] = []

    def visit(held: Structure, path: str) -> None:
        if held.kind in ("tensor", "number", "constant"):
            result.append(f"output_{path}" if path[:1].isdigit() else path or "output")
            return
        keys = [str(json.loads(key)) for key in held.keys] if held.kind == "dict" else held.keys
        for number, child in enumerate(held.children):
            visit(child, f"{path}.{keys[number] if keys else number}".removeprefix("."))

    visit(_structure(program.call_spec.out_spec, iter(_outputs(program))), "")
    return result


def length_name(path: str, axis: int) -> str:
    """The name of an output that is the size of an axis of another."""
    return f"{path}.shape[{axis}]"


def with_lengths(interface: Interface, output_names: Sequence[str]) -> Interface:
    """The interface of a model some of whose outputs are sizes of others, by their names: results have these
    sizes."""
    leaves = len(list(interface.result.leaves()))
    sizes: dict[str, list[tuple[int, int]]] = {}
    for number, name in enumerate(output_names):
        match = re.fullmatch(r"(.*)\.shape\[(\d+)\]", name)
        if number >= leaves and match:
            sizes.setdefault(match[1], []).append((int(match[2]), number))
    if not sizes:
        return interface

    def sized(held: Structure) -> Structure:
        if held.kind == "tensor":
            return replace(held, sizes=tuple(sizes.get(output_names[held.number], ())))
        return replace(held, children=tuple(map(sized, held.children)))

    return replace(interface, result=sized(interface.result))


def _inputs(program: torch.export.ExportedProgram) -> list[Structure]:
    leaves, count = [], 0
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT:
            continue
        if isinstance(spec.arg, TensorArgument):
            leaves.append(Structure("tensor", count))
            count += 1
        else:
            leaves.append(_constant(getattr(spec.arg, "value", None)))
    return leaves


def _outputs(program: torch.export.ExportedProgram) -> list[Structure]:
    leaves, count = [], 0
    for spec in program.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            continue
        if isinstance(spec.arg, ConstantArgument):
            leaves.append(_constant(spec.arg.value))
            continue
        kind = "tensor" if isinstance(spec.arg, TensorArgument) else "number"
        leaves.append(Structure(kind, count))
        count += 1
    return leaves


def _constant(value: Any) -> Structure:
    if isinstance(value, _PLAIN):
        return Structure("constant", value=json.dumps(value))
    return Structure("constant", value=json.dumps(str(value)))


def _parameters(
    program: torch.export.ExportedProgram,
    module: torch.nn.Module | None,
    args: Sequence[Structure],
    kwargs: Mapping[str, Structure],
) -> tuple[Parameter, ...]:
    if module is None:
        names = getattr(program.module_call_graph[0].signature, "forward_arg_names", None) or []
        names = names if len(names) == len(args) + len(kwargs) else [f"arg_{i}" for i in range(len(args))]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        return tuple(Parameter(name, "POSITIONAL_OR_KEYWORD", held) for name, held in given.items())
    signature = inspect.signature(module.forward)
    bound = signature.bind(*args, **kwargs).arguments
    result = []
    for name, parameter in signature.parameters.items():
        held = bound.get(name)
        if isinstance(held, tuple):
            held = Structure("tuple", children=held)
        elif isinstance(held, dict):
            held = Structure("dict", keys=tuple(map(json.dumps, held)), children=tuple(held.values()))
        default, opaque = "", False
        if parameter.default is not inspect.Parameter.empty:
            opaque = not isinstance(parameter.default, _PLAIN)
            default = "" if opaque else json.dumps(parameter.default)
        result.append(Parameter(name, parameter.kind.name, held, default, opaque))
    return tuple(result)


def _structure(spec: pytree.TreeSpec, leaves: Iterator[Structure]) -> Structure:
    """The structure that a tree of PyTorch describes, with the next of ``leaves`` at its leaves."""
    if spec.is_leaf():
        return next(leaves)
    cls, context = spec.type, spec.context
    children = tuple([_structure(child, leaves) for child in spec.children()])
    if cls in (tuple, list, deque):
        return Structure("tuple" if cls is tuple else "list", children=children)
    if cls in (dict, OrderedDict, defaultdict):
        keys = context[1] if cls is defaultdict else context
        return Structure("dict", keys=tuple(map(json.dumps, keys)), children=children)
    if cls is namedtuple:
        return Structure("record", keys=context._fields, children=children, type=class_name(context))
    if issubclass(cls, Mapping) and isinstance(context, list):
        return Structure("record", keys=tuple(context), children=children, type=class_name(cls))
    if hasattr(cls, "__dataclass_fields__"):
        return Structure("record", keys=tuple(context[0]), children=children, type=class_name(cls))
    return Structure("object", value=json.dumps(context), children=children, type=class_name(cls))
