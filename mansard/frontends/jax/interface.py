"""How a JAX function is called: its parameters, and the nests of its arguments and results."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import jax

from mansard.plan.interface import Interface, Parameter, Structure

_PLAIN = (bool, int, float, str, type(None))


class _NoFormError(Exception):
    """A nest has a container that no `Structure` describes."""


def interface_of(function: Any, in_tree: Any, out_tree: Any) -> Interface | None:
    """The interface of a function (None: an exported one, whose parameters have no names).

    ``in_tree`` is the structure of ``(args, kwargs)``, ``out_tree`` that of the result; their leaves are the
    inputs and outputs in order. None where a nest has containers of a class of its own.
    """
    args, kwargs = jax.tree_util.tree_unflatten(in_tree, list(range(in_tree.num_leaves)))
    result = jax.tree_util.tree_unflatten(out_tree, list(range(out_tree.num_leaves)))
    try:
        return Interface(_parameters(function, args, kwargs), _structure(result))
    except (_NoFormError, TypeError, ValueError):
        return None


def _parameters(function: Any, args: Any, kwargs: Any) -> tuple[Parameter, ...]:
    if function is None:
        positional = [
            Parameter(f"arg{n}", "POSITIONAL_ONLY", _structure(value)) for n, value in enumerate(args)
        ]
        named = [Parameter(name, "KEYWORD_ONLY", _structure(value)) for name, value in kwargs.items()]
        return (*positional, *named)
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs).arguments
    parameters = []
    for name, parameter in signature.parameters.items():
        plain = isinstance(parameter.default, _PLAIN)
        stated = parameter.default is not inspect.Parameter.empty
        parameters.append(
            Parameter(
                name,
                parameter.kind.name,
                _structure(bound[name]) if name in bound else None,
                json.dumps(parameter.default) if stated and plain else "",
                opaque=stated and not plain,
            )
        )
    return tuple(parameters)


def _structure(value: Any) -> Structure:
    """The structure of a nest whose leaves are numbers of inputs or outputs."""
    if isinstance(value, int):
        return Structure("tensor", value)
    if value is None:
        return Structure("constant", value="null")
    cls = type(value)
    if cls in (tuple, list):
        return Structure(cls.__name__, children=tuple(map(_structure, value)))
    if isinstance(value, dict) and all(isinstance(key, _PLAIN) for key in value):
        keys = tuple(json.dumps(key) for key in value)
        return Structure("dict", keys=keys, children=tuple(map(_structure, value.values())))
    fields = getattr(value, "_fields", None)
    if fields is None and dataclasses.is_dataclass(value):
        fields = tuple(field.name for field in dataclasses.fields(value))
    if fields is None:
        raise _NoFormError
    parts = tuple(_structure(getattr(value, name)) for name in fields)
    return Structure(
        "record", keys=tuple(fields), children=parts, type=f"{cls.__module__}:{cls.__qualname__}"
    )
