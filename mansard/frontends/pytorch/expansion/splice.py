"""Subgraphs and traced functions copied into a torch.fx graph in the place of a call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx

_KEPT = ("stack_trace", "nn_module_stack", "custom")


def splice(
    module: torch.fx.GraphModule, before: Any, part: torch.fx.GraphModule, args: Sequence[Any]
) -> list[Any]:
    """Copy a subgraph before a node, with its inputs bound to ``args`` (nodes or numbers); its results.

    Nodes without a place in the user's source take that of the node.
    """
    copies: dict[Any, Any] = {}
    inputs = iter(args)
    results: Any = ()
    with module.graph.inserting_before(before):
        for node in part.graph.nodes:
            if node.op == "placeholder":
                copies[node] = next(inputs)
            elif node.op == "output":
                results = torch.fx.node.map_arg(node.args[0], lambda n: copies[n])
            else:
                copies[node] = module.graph.node_copy(node, lambda n: copies[n])
                if node.op == "get_attr":
                    copies[node].target = _attribute(module, part, str(node.target))
                for key in _KEPT:
                    if key in before.meta:
                        copies[node].meta.setdefault(key, before.meta[key])
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _attribute(module: torch.fx.GraphModule, part: torch.fx.GraphModule, target: str) -> str:
    """A subgraph of ``part``, or a tensor that it holds, as an attribute of ``module`` under a free name."""
    value = operator.attrgetter(target)(part)
    number = 0
    while hasattr(module, name := f"{target.replace('.', '_')}_{number}"):
        if getattr(module, name) is value:
            return name
        number += 1
    if isinstance(value, torch.nn.Module):
        module.add_submodule(name, value)
    else:
        module.register_buffer(name, value)
    return name


def call(module: torch.fx.GraphModule, before: Any, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Trace ``function`` of tensors on the values of nodes, and copy what it computes before a node."""
    return splice(module, before, trace(function, args), args)


def trace(
    function: Callable[..., Any], args: Sequence[Any], table: Mapping[Any, Callable[..., Any]] | None = None
) -> torch.fx.GraphModule:
    """The ops of ``function`` on the values of nodes, decomposed by ``table``."""
    values = [arg.meta["val"] for arg in args]
    mode = next(v.fake_mode for v in values if isinstance(v, FakeTensor))
    with torch.no_grad(), mode:
        return make_fx(function, decomposition_table=dict(table or {}))(*values)


def replace_results(module: torch.fx.GraphModule, node: Any, results: Sequence[Any]) -> None:
    """Let the users of a call's items take ``results``, and erase the call."""
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])
        module.graph.erase_node(user)
    module.graph.erase_node(node)
