"""Functions: those that a model defines, and those by which the standard defines ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.entries import Absent, Entry, Sequence
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.weights import element_type

if TYPE_CHECKING:
    from mansard.frontends.onnx.graph import GraphImporter


def has_body(node: Node) -> bool:
    """Whether the standard defines the op as a function."""
    schema = _schema(node)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def body_of(node: Node, opset: int) -> Any | None:
    """The function by which the standard defines a node's op, or None."""
    schema = _schema(node)
    if schema is None:
        return None
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= opset] or schema.function_opset_versions
        return _parsed(schema.get_function_with_opset_version(max(versions)))
    if schema.has_context_dependent_function:
        types = [_type(entry).SerializeToString() for entry in node.inputs]
        versions = schema.context_dependent_function_opset_versions
        usable = [v for v in versions if v <= opset] or versions
        text = schema.get_context_dependent_function_with_opset_version(
            max(usable), node.proto.SerializeToString(), types
        )
        return _parsed(text) if text else None
    return None


def _parsed(serialised: bytes) -> Any:
    function = onnx.FunctionProto()
    function.ParseFromString(serialised)
    return function if function.node else None


def _schema(node: Node) -> Any | None:
    domain = "" if node.proto.domain == "ai.onnx" else node.proto.domain
    try:
        return onnx.defs.get_schema(node.op, node.version, domain)
    except onnx.defs.SchemaError:
        return None


def _type(entry: Entry | None) -> Any:
    if isinstance(entry, Sequence):
        first = entry.items[0] if entry.items else None
        return onnx.helper.make_sequence_type_proto(_type(first))
    if not isinstance(entry, Tensor):
        return onnx.TypeProto()
    shape = [d if isinstance(d, int) else str(d) for d in entry.shape]
    return onnx.helper.make_tensor_type_proto(element_type(entry.dtype), shape)


def call(g: GraphImporter, node: Node, function: Any) -> list[Entry | None]:
    """The results of a function's body for a node's operands and attributes."""
    attributes = {a.name: a for a in function.attribute_proto}
    attributes |= {a.name: a for a in node.proto.attribute}
    schema = _schema(node)
    if schema is not None:
        for name, declared in schema.attributes.items():
            if name not in attributes and declared.default_value.name:
                attributes[name] = declared.default_value
    names: dict[str, Entry] = {name: Absent() for name in function.input}
    names |= {n: e for n, e in zip(function.input, node.inputs, strict=False) if e is not None}
    before = g.opsets
    g.opsets = before | {
        ("" if o.domain == "ai.onnx" else o.domain): o.version for o in function.opset_import
    }
    try:
        with g.scope(names, closed=True):
            g.run([_bound(proto, attributes) for proto in function.node])
            present = dict(zip(function.output, node.outputs, strict=False))
            return [g.find(name) if present.get(name) else None for name in function.output]
    finally:
        g.opsets = before


def _bound(proto: Any, attributes: dict[str, Any]) -> Any:
    """A node of a body with its references to attributes of the function replaced."""
    if not _refers(proto):
        return proto
    copy = onnx.NodeProto()
    copy.CopyFrom(proto)
    kept = []
    for attribute in copy.attribute:
        if attribute.ref_attr_name:
            given = attributes.get(attribute.ref_attr_name)
            if given is None:
                continue
            renamed = onnx.AttributeProto()
            renamed.CopyFrom(given)
            renamed.name = attribute.name
            kept.append(renamed)
        else:
            if attribute.HasField("g"):
                nodes = [_bound(inner, attributes) for inner in attribute.g.node]
                del attribute.g.node[:]
                attribute.g.node.extend(nodes)
            kept.append(attribute)
    result = onnx.NodeProto()
    result.CopyFrom(copy)
    del result.attribute[:]
    result.attribute.extend(kept)
    return result


def _refers(proto: Any) -> bool:
    return any(
        a.ref_attr_name or (a.HasField("g") and any(_refers(n) for n in a.g.node)) for a in proto.attribute
    )
