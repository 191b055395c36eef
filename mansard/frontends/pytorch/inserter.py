"""Calls inserted into a torch.fx graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


class Inserter:
    """Inserts calls before a node, with the node's location in the model and their results' metadata."""

    def __init__(self, graph: torch.fx.Graph, like: Any) -> None:
        self.graph, self.like = graph, like

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A new call node."""
        node = self.graph.call_function(target, args, kwargs)
        node.meta = {k: v for k, v in self.like.meta.items() if k in ("stack_trace", "nn_module_stack")}
        values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta.get("val"))
        with torch.no_grad(), _fake_mode(self.graph):
            node.meta["val"] = target(*values[0], **values[1])
        return node


def _fake_mode(graph: torch.fx.Graph) -> contextlib.AbstractContextManager[Any]:
    """The mode in which the graph's tensors have no data, which calls without a tensor need."""
    values = (node.meta.get("val") for node in graph.nodes)
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    return contextlib.nullcontext() if mode is None else mode
