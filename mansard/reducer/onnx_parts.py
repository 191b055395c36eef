"""Parts of an ONNX model whose import fails: some of its nodes, with what they read as inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


class OnnxParts:
    """The nodes of a model; ``write`` makes a model of some of them."""

    suffix = ".onnx"

    def __init__(self, path: Path) -> None:
        import onnx

        self._onnx = onnx
        model = onnx.load(path)
        try:
            self._model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except Exception:  # a model that the standard's inference refuses
            self._model = model
        graph = self._model.graph
        self.parts: list[Any] = list(graph.node)
        known = (*graph.value_info, *graph.input, *graph.output)
        self._types = {value.name: value for value in known}
        self._weights = {tensor.name: tensor for tensor in graph.initializer}

    def write(self, nodes: Sequence[Any], path: Path) -> bool:
        """Write a model of these nodes; False where the type of what they read is not known."""
        names = [str(name) for node in nodes for name in node.output if name]
        read = dict.fromkeys(name for node in nodes for name in _reads(node) if name)
        given = [name for name in read if name not in names and name not in self._weights]
        if any(name not in self._types for name in given):
            return False
        stated = {value.name for value in self._model.graph.output}
        results = [name for name in names if name not in read or name in stated]
        graph = self._onnx.helper.make_graph(
            list(nodes),
            self._model.graph.name or "main",
            [self._types[name] for name in given],
            [self._types.get(name) or self._onnx.ValueInfoProto(name=name) for name in results],
            [self._weights[name] for name in read if name in self._weights],
        )
        model = self._onnx.ModelProto()
        model.CopyFrom(self._model)
        model.graph.CopyFrom(graph)
        try:
            self._onnx.save(model, path)
        except (ValueError, OSError):
            return False
        return True

    def describe(self, nodes: Sequence[Any]) -> str:
        """The nodes as text."""
        return "\n".join(self._onnx.printer.to_text(node).strip() for node in nodes)


def _reads(node: Any) -> list[str]:
    """What a node reads, its subgraphs' outer values among it."""
    names = list(node.input)
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            inner = {name for n in graph.node for name in n.output} | {v.name for v in graph.input}
            inner |= {t.name for t in graph.initializer}
            names += [name for n in graph.node for name in _reads(n) if name not in inner]
            names += [v.name for v in graph.output if v.name not in inner]
    return names
