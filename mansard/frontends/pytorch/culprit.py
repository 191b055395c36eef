"""Which op of a graph ends the process that lowers it: for the error message, after it has happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

_BUDGET_SECONDS = 60.0
"""After so long, the search ends without an answer."""

Dies = Callable[[torch.fx.Graph], bool]


def culprit(graph: torch.fx.Graph, dies: Dies) -> Any:
    """The node that alone makes ``dies`` true, else the last one of the shortest such prefix, else None.

    ``dies`` lowers a graph and says whether the process that did so ended.
    """
    deadline = time.monotonic() + _BUDGET_SECONDS
    calls = [n for n in graph.nodes if n.op == "call_function" and is_value(n.meta.get("val"))]
    for node in distinct(calls):
        if time.monotonic() > deadline:
            return None
        if dies(part_of([node])):
            return node
    if not calls or not dies(part_of(calls)):
        return None
    low, high = 0, len(calls)  # the first `low` nodes are harmless, the first `high` are not
    while high - low > 1 and time.monotonic() < deadline:
        middle = (low + high) // 2
        low, high = (low, middle) if dies(part_of(calls[:middle])) else (middle, high)
    return calls[high - 1] if high - low == 1 else None


def is_value(value: Any) -> bool:
    """Whether a node's value can be a result of a graph: a tensor or a number, not a tuple of several."""
    return isinstance(value, (torch.Tensor, torch.SymInt, int, float, bool, torch.SymFloat, torch.SymBool))


def distinct(nodes: list[Any]) -> Iterator[Any]:
    """Nodes of which no earlier one does the same to operands of the same types."""
    seen: set[str] = set()
    for node in nodes:
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: _typed(n.meta.get("val")))
        key = f"{node.target}{arguments}"
        if key not in seen:
            seen.add(key)
            yield node


def _typed(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}"
    return str(value)


def part_of(nodes: list[Any]) -> torch.fx.Graph:
    """These nodes as a graph: inputs are the values they use from elsewhere, the output is the last one's."""
    part = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    inside = set(nodes)
    outside = dict.fromkeys(s for n in nodes for s in n.all_input_nodes if s not in inside)
    for source in outside:
        copies[source] = part.placeholder(source.name)
        copies[source].meta = dict(source.meta)
    for node in nodes:
        copies[node] = part.node_copy(node, lambda n: copies[n])
    part.output((copies[nodes[-1]],))
    return part
