"""The arguments of a call in the form that the framework's model takes, as the flat inputs of the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from mansard.arguments import shown
from mansard.errors import InputError
from mansard.plan.interface import Interface, Parameter, Structure, class_name

_MISSING = object()
_PLAIN = (bool, int, float, str, type(None))


class CallArguments:
    """Takes the arguments of a model's calls apart as its `Interface` says."""

    def __init__(self, interface: Interface, input_names: Sequence[str]) -> None:
        parameters = interface.parameters or ()
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._signature = interface.signature()
        self._count = len(input_names)
        self._input_names = frozenset(input_names)
        given = [p.structure for p in parameters if p.structure is not None]
        numbers = [s.number if s.kind == "tensor" else -1 for s in given]
        leading = list(parameters)[: len(given)]
        self._flat = numbers == list(range(self._count)) and all(p.structure for p in leading)
        """Whether the inputs are the first parameters, in order."""
        self._open = any(p.kind == "VAR_KEYWORD" for p in parameters)

    def flatten(
        self, args: Sequence[object], named: Mapping[str, object]
    ) -> tuple[Sequence[object], Mapping[str, object]]:
        """The arguments of a call as the plan's inputs, by position and by name.

        Inputs may also be given as the plan has them: by their own names, or all by position. Raises
        InputError for arguments that the model's function does not take, and for those that differ from what
        the model was compiled with, other than in the contents of tensors.
        """
        if self._flat and not named and len(args) == self._count:
            return args, named
        others = [name for name in named if name not in self._parameters]
        if not self._open and others and self._input_names.issuperset(others):
            return args, named
        try:
            bound = self._signature.bind(*args, **named).arguments
        except TypeError as error:
            if not named and len(args) == self._count and not any(map(_structured, args)):
                return args, named
            raise InputError(f"{error}; the model takes {self}") from None
        inputs: list[object] = [_MISSING] * self._count
        for name, parameter in self._parameters.items():
            _place(parameter, bound.get(name, _MISSING), inputs)
        return inputs, {}

    def __str__(self) -> str:
        return str(self._signature)


def call_arguments(interface: Interface | None, input_names: Sequence[str]) -> CallArguments | None:
    """What takes the arguments of calls apart; None for a model that takes the plan's inputs as they are."""
    if interface is None or interface.parameters is None:
        return None
    return CallArguments(interface, input_names)


def _structured(value: object) -> bool:
    return isinstance(value, (*_PLAIN, Mapping, list, tuple))


def _place(parameter: Parameter, value: object, inputs: list[object]) -> None:
    """Put the tensors of an argument at their places of ``inputs``."""
    structure, name = parameter.structure, parameter.name
    if value is _MISSING and parameter.kind in ("VAR_POSITIONAL", "VAR_KEYWORD"):
        value = () if parameter.kind == "VAR_POSITIONAL" else {}
        structure = structure or Structure("tuple" if value == () else "dict")
    if value is _MISSING:
        if structure is None:
            return  # the default, as in the example
        if not parameter.default:
            raise InputError(f"the argument {name!r} is missing")
        value = json.loads(parameter.default)
        if structure.kind != "constant" or not _equal(value, json.loads(structure.value)):
            fixed = f"as {structure.value}" if structure.kind == "constant" else "with a tensor"
            raise InputError(
                f"the argument {name!r} is missing: its default is {value!r}, but the model was compiled "
                f"with it {fixed}; give it, or compile the model without"
            )
        return
    if structure is None:
        default = json.loads(parameter.default) if parameter.default else _MISSING
        if not isinstance(value, _PLAIN) or default is _MISSING or not _equal(value, default):
            raise InputError(
                f"the argument {name!r} was not among the example inputs, so that its default is compiled "
                "in: leave it out, or compile the model with it"
            )
        return
    _flatten(structure, value, name, inputs)


def _flatten(structure: Structure, value: object, path: str, inputs: list[object]) -> None:
    kind = structure.kind
    if kind == "tensor":
        if value is None or isinstance(value, (Mapping, str)):
            raise InputError(_mismatch(path, value, "a tensor there"))
        inputs[structure.number] = value
    elif kind == "constant":
        fixed = json.loads(structure.value)
        if not isinstance(value, _PLAIN) or not _equal(value, fixed):
            raise InputError(
                f"{path} is {shown(value)}, but the model was compiled with {fixed!r} there, which is part "
                "of its code: compile it for another value, or make the argument a tensor"
            )
    else:
        for child, (key, item) in zip(structure.children, _items(structure, value, path), strict=True):
            _flatten(child, item, f"{path}{key}", inputs)


def _items(structure: Structure, value: object, path: str) -> list[tuple[str, object]]:
    """The parts of a value with their places in it, in the structure's order."""
    kind, count = structure.kind, len(structure.children)
    if kind in ("tuple", "list"):
        if not isinstance(value, (list, tuple)) or len(value) != count:
            raise InputError(_mismatch(path, value, f"a {kind} of {count}"))
        return [(f"[{number}]", item) for number, item in enumerate(value)]
    if kind == "dict":
        keys = [json.loads(key) for key in structure.keys]
        if not isinstance(value, Mapping) or value.keys() != set(keys):
            raise InputError(_mismatch(path, value, f"a dict of {', '.join(map(repr, keys))}"))
        return [(f"[{key!r}]", value[key]) for key in keys]
    if kind == "record":
        if isinstance(value, Mapping) and value.keys() == set(structure.keys):
            return [(f".{key}", value[key]) for key in structure.keys]
        if not all(hasattr(value, key) for key in structure.keys):
            raise InputError(_mismatch(path, value, f"a {structure.type}"))
        return [(f".{key}", getattr(value, key)) for key in structure.keys]
    return [(f"[{number}]", item) for number, item in enumerate(_taken_apart(structure, value, path))]


def _taken_apart(structure: Structure, value: object, path: str) -> Sequence[object]:
    """The parts of an object of a class that the framework can take apart."""
    from torch.utils import _pytree as pytree

    from mansard.torch_caches import register_caches

    register_caches()
    handler = pytree.SUPPORTED_NODES.get(type(value))
    if handler is None or class_name(type(value)) != structure.type:
        raise InputError(_mismatch(path, value, f"a {structure.type}"))
    children, context = handler.flatten_fn(value)
    if len(children) != len(structure.children) or json.dumps(context) != structure.value:
        raise InputError(
            f"{path}: the {type(value).__name__} has other parts than that which the model was compiled with"
        )
    parts: Sequence[object] = children
    return parts


def _mismatch(path: str, value: object, wanted: str) -> str:
    return f"{path} is {_outline(value)}, but the model was compiled with {wanted}"


def _outline(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} of {', '.join(repr(key) for key in list(value)[:8]) or 'nothing'}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _equal(value: object, fixed: object) -> bool:
    """Whether a model computes the same with both: 2 and 2.0 do, None and False do not."""
    if value is None or fixed is None or isinstance(value, str) or isinstance(fixed, str):
        return value is fixed or (isinstance(value, str) and value == fixed)
    return value == fixed or (value != value and fixed != fixed)  # noqa: PLR0124  # NaN
