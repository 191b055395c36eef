"""The ONNX model of a NamedGraph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mansard.errors import CodegenError
from mansard.ir.ops import Op
from mansard.regions.named.graph import NamedGraph
from mansard.regions.named.layout import with_layout

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 17, 8
LIMIT = (1 << 31) - (1 << 20)
"""Bytes of a model; protobuf has no larger ones."""


@dataclass(frozen=True)
class WrittenOnnx:
    """A model as bytes, and the ops of the Graph that each of its nodes, by name, computes a part of."""

    data: bytes
    sources: Mapping[str, frozenset[Op]]


def write_onnx(graph: NamedGraph) -> WrittenOnnx:
    """The model of `onnx_model` as bytes, the same for equal graphs. Raises CodegenError as that does, and
    for models of 2 GB or more."""
    size = sum(value.type.bytes for value in graph.constants if isinstance(value.type.bytes, int))
    if size > LIMIT:
        raise CodegenError(
            f"the constants of {graph.name} have {size} bytes; an ONNX model has at most {LIMIT}"
        )
    model, sources = _written(graph)
    return WrittenOnnx(model.SerializeToString(deterministic=True), sources)


def onnx_bytes(graph: NamedGraph) -> bytes:
    """The bytes of `write_onnx`."""
    return write_onnx(graph).data


def onnx_model(graph: NamedGraph) -> onnx.ModelProto:
    """The model: inputs and outputs by their names, constants as initialisers, every value that has an
    encoding between a QuantizeLinear and DequantizeLinears. Raises CodegenError where there is none."""
    return _written(graph)[0]


def _written(graph: NamedGraph) -> tuple[onnx.ModelProto, dict[str, frozenset[Op]]]:
    from onnx import helper

    from mansard.regions.onnx.ops import write_op
    from mansard.regions.onnx.writer import CONTRIB, OnnxWriter, value_info

    graph = with_layout(graph, channels_first=True)
    writer = OnnxWriter(graph)
    sources: dict[str, frozenset[Op]] = {}
    for op in graph.ops:
        before = len(writer.nodes)
        write_op(writer, op)
        sources |= {node.name: op.sources for node in writer.nodes[before:]}
    for value in graph.outputs:
        if value in graph.inputs or value in graph.constants:
            raise CodegenError(f"output {value} of {graph.name} is not computed")
    onnx_graph = helper.make_graph(
        writer.nodes,
        graph.name,
        [value_info(value) for value in graph.inputs],
        [value_info(value) for value in graph.outputs],
        list(writer.initializers.values()),
    )
    versions = {"": OPSET, CONTRIB: 1}
    opsets = [helper.make_opsetid(domain, versions[domain]) for domain in sorted(writer.domains)]
    model = helper.make_model(
        onnx_graph, producer_name="mansard", ir_version=IR_VERSION, opset_imports=opsets
    )
    return model, sources
