"""Parts of a PyTorch program whose import fails: some calls of its graph, with what they read as inputs."""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def save_program(module: Any, inputs: tuple[Any, ...], path: Path) -> None:
    """Export a module for the sizes of these inputs, and save the program. Raises what torch.export does."""
    import torch

    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(torch.export.export(module, inputs, strict=False), path)
    finally:
        logging.disable(level)


class TorchParts:
    """The calls of an exported program; ``write`` makes a program of some of them."""

    suffix = ".pt2"

    def __init__(self, path: Path) -> None:
        import torch

        self._program = torch.export.load(path)
        self.parts: list[Any] = [
            node
            for node in self._program.graph.nodes
            if node.op == "call_function" and node.target is not operator.getitem
        ]

    def write(self, nodes: Sequence[Any], path: Path) -> bool:
        """Write a program of these calls; False where they are none that can be exported."""
        import torch

        try:
            module, inputs = self._module(list(nodes))
            with torch.no_grad():
                save_program(module, inputs, path)
        except Exception:  # of torch.export: the program is none
            return False
        return True

    def describe(self, nodes: Sequence[Any]) -> str:
        """The calls as text."""
        return "\n".join(str(node.format_node()) for node in nodes)

    def _module(self, calls: list[Any]) -> tuple[Any, tuple[Any, ...]]:
        """The calls as a module, and tensors for its inputs."""
        import torch

        nodes = sorted({*calls, *_items(calls)}, key=list(self._program.graph.nodes).index)
        inside = set(nodes)
        part = torch.fx.Graph()
        copies: dict[Any, Any] = {}
        inputs: list[Any] = []
        for source in dict.fromkeys(s for n in nodes for s in n.all_input_nodes if s not in inside):
            if source.op == "get_attr":
                copies[source] = part.node_copy(source, copies.__getitem__)
                continue
            copies[source] = part.placeholder(source.name)
            inputs.append(_example(source.meta["val"]))
        for node in nodes:
            copies[node] = part.node_copy(node, copies.__getitem__)
        last = [n for n in nodes if not any(u in inside for u in n.users)]
        part.output(tuple(copies[n] for n in last))
        return torch.fx.GraphModule(self._program.graph_module, part), tuple(inputs)


def _items(calls: list[Any]) -> list[Any]:
    return [user for call in calls for user in call.users if user.target is operator.getitem]


def _example(value: Any) -> Any:
    """A tensor, or a number, of a value's type."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    shape = [size if isinstance(size, int) else int(size.node.hint) for size in value.shape]
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return torch.randn(shape).to(value.dtype)
    return torch.zeros(shape, dtype=value.dtype)
