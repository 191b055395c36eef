"""How a JAX function is called: its parameters, and the nests of its arguments and results."""

from __future__ import annotations

import inspect
import json
from typing import Any

import jax

from mansard.frontends.emission.nests import PLAIN, NoFormError, structure_of
from mansard.plan.interface import Interface, Parameter


def interface_of(function: Any, in_tree: Any, out_tree: Any) -> Interface | None:
    """The interface of a function (None: an exported one, whose parameters have no names).

    ``in_tree`` is the structure of ``(args, kwargs)``, ``out_tree`` that of the result; their leaves are the
    inputs and outputs in order. None where a nest has containers of a class of its own.
    """
    args, kwargs = jax.tree_util.tree_unflatten(in_tree, list(range(in_tree.num_leaves)))
    result = jax.tree_util.tree_unflatten(out_tree, list(range(out_tree.num_leaves)))
    try:
        return Interface(_parameters(function, args, kwargs), structure_of(result))
    except (NoFormError, TypeError, ValueError):
        return None


def _parameters(function: Any, args: Any, kwargs: Any) -> tuple[Parameter, ...]:
    if function is None:
        positional = [
            Parameter(f"arg{n}", "POSITIONAL_ONLY", structure_of(value)) for n, value in enumerate(args)
        ]
        named = [Parameter(name, "KEYWORD_ONLY", structure_of(value)) for name, value in kwargs.items()]
        return (*positional, *named)
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs).arguments
    parameters = []
    for name, parameter in signature.parameters.items():
        plain = isinstance(parameter.default, PLAIN)
        stated = parameter.default is not inspect.Parameter.empty
        parameters.append(
            Parameter(
                name,
                parameter.kind.name,
                structure_of(bound[name]) if name in bound else None,
                json.dumps(parameter.default) if stated and plain else "",
                opaque=stated and not plain,
            )
        )
    return tuple(parameters)
