"""A graph that TorchDynamo captured, as a module: weights are its buffers, sizes follow from inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mansard.errors import CompileError


@dataclass(frozen=True)
class CapturedGraph:
    """``module`` takes the tensors at ``inputs`` of the captured graph's arguments; those at ``weights`` are
    its buffers, and the numbers at ``fixed`` constants."""

    module: torch.nn.Module
    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    fixed: tuple[int, ...]
    dynamic_shapes: tuple[dict[int, Any] | None, ...]
    """For each input the axes whose sizes vary."""


def separate(captured: torch.fx.GraphModule, examples: Sequence[Any]) -> CapturedGraph:
    """Make weights buffers of the graph's module, and sizes that are passed beside tensors computations.

    TorchDynamo passes parameters and buffers of a model as arguments, and the value of each symbol in the
    inputs' sizes. A number that is no size (an argument of the model that varies) is fixed at its value, and
    ``fixed`` says which. Raises CompileError for tensors that are not in the CPU's memory.
    """
    graph = torch.fx.Graph()
    root = torch.nn.Module()
    copies: dict[torch.fx.Node, Any] = {}
    placeholders = [node for node in captured.graph.nodes if node.op == "placeholder"]
    held, given = _weights(examples), []
    for number, (node, example) in enumerate(zip(placeholders, examples, strict=True)):
        if number in held:
            name = f"weight_{len(root._buffers)}_{node.name.strip('_')}"
            root.register_buffer(name, example.detach())
            copies[node] = graph.get_attr(name)
        elif isinstance(example, torch.Tensor):
            _check_device(node.name, example)
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
            given.append(number)
    fixed = []
    for number, (node, example) in enumerate(zip(placeholders, examples, strict=True)):
        if not isinstance(example, torch.Tensor):
            copies[node] = _size(
                graph, node, example, [(placeholders[i], copies[placeholders[i]]) for i in given]
            )
            fixed += [] if isinstance(copies[node], torch.fx.Node) else [number]
    for node in captured.graph.nodes:
        if node.op == "get_attr":
            copies[node] = _attribute(captured, root, graph, node)
        elif node.op != "placeholder":
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    shapes = tuple(_varying(placeholders[number]) for number in given)
    module = torch.fx.GraphModule(root, graph)
    return CapturedGraph(module, tuple(given), tuple(held), tuple(fixed), shapes)


def _weights(examples: Sequence[Any]) -> tuple[int, ...]:
    """Which arguments are the model's own tensors."""
    return tuple(
        number
        for number, example in enumerate(examples)
        if isinstance(example, torch.nn.Parameter) or getattr(example, "_dynamo_static_input_type", None)
    )


def _check_device(name: str, tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise CompileError(
            f"the input {name!r} is a tensor on {tensor.device}; the backend mansard takes tensors in the "
            "CPU's memory, and copies to the devices that it runs on"
        )


def _size(
    graph: torch.fx.Graph, number: torch.fx.Node, value: Any, tensors: Sequence[tuple[Any, Any]]
) -> Any:
    """A number among the arguments: the size of an input with that symbol, else its value."""
    symbol = number.meta.get("example_value")
    if isinstance(symbol, torch.SymInt):
        for node, copy in tensors:
            for axis, size in enumerate(node.meta["example_value"].shape):
                if isinstance(size, torch.SymInt) and size.node.expr == symbol.node.expr:
                    return graph.call_function(torch.ops.aten.sym_size.int, (copy, axis))
    return value


def _attribute(
    captured: torch.fx.GraphModule, root: torch.nn.Module, graph: torch.fx.Graph, node: torch.fx.Node
) -> torch.fx.Node:
    """A tensor or submodule that the captured graph holds itself."""
    value: Any = captured
    for part in str(node.target).split("."):
        value = getattr(value, part)
    name = str(node.target).replace(".", "_")
    if isinstance(value, torch.Tensor):
        root.register_buffer(name, value.detach())
    else:
        setattr(root, name, value)
    return graph.get_attr(name)


def _varying(node: torch.fx.Node) -> dict[int, Any] | None:
    """The axes of an input whose sizes are symbols."""
    sizes = node.meta["example_value"].shape
    axes = {i: torch.export.Dim.AUTO for i, size in enumerate(sizes) if isinstance(size, torch.SymInt)}
    return axes or None
