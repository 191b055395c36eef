"""Conversions between element types, and ops that leave the elements as they are."""

from __future__ import annotations

from mansard.dtypes import DType
from mansard.errors import UnsupportedOpError
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.entries import Entry
from mansard.frontends.onnx.graph import GraphImporter, dtype_named
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import Result, rule


def convert(g: GraphImporter, node: Node, x: Tensor, dtype: DType) -> Tensor:
    """Conversion with ONNX's rules: f8 saturates unless ``saturate`` is 0."""
    if dtype is DType.F8 and node.integer("saturate", 1) and x.dtype.is_float and x.dtype is not DType.F8:

        def saturated(e: Num) -> Num:
            e = e if e.dtype.bits >= 32 else e.cast(DType.F32)
            return e.max(-448.0).min(448.0).cast(dtype)

        return g.map(saturated, x)
    if dtype in (DType.I4, DType.U4):
        raise UnsupportedOpError(node.full_name, node.location, f"results of {dtype.value}")
    return g.cast(x, dtype)


@rule("Cast")
def cast(g: GraphImporter, node: Node) -> Tensor:
    """Conversion to a stated type."""
    return convert(g, node, node.tensor(0), dtype_named(node.integer("to"), node))


@rule("CastLike")
def cast_like(g: GraphImporter, node: Node) -> Tensor:
    """Conversion to another tensor's type."""
    return convert(g, node, node.tensor(0), node.tensor(1).dtype)


@rule("BitCast")
def bit_cast(g: GraphImporter, node: Node) -> Tensor:
    """The same bits as another type of the same width."""
    dtype = dtype_named(node.integer("to"), node)
    x = node.tensor(0)
    if DType.BOOL in (dtype, x.dtype):
        if dtype is x.dtype:
            return x
        return g.map(
            lambda e: (e.bitcast(DType.U8) if dtype is DType.BOOL else e.cast(DType.U8)).cast(dtype), x
        )
    return g.map(lambda e: e.bitcast(dtype), x)


@rule("Identity")
def identity(g: GraphImporter, node: Node) -> Entry:
    """The operand, a sequence or optional too."""
    entry = node.inputs[0]
    assert entry is not None
    return entry


@rule("Dropout")
def dropout(g: GraphImporter, node: Node) -> Result:
    """Nothing is dropped in inference."""
    x = node.tensor(0)
    if node.version >= 12 and node.optional(2) is not None and bool(node.numbers(2).reshape(-1)[0]):
        ratio = 0.5 if node.optional(1) is None else float(node.numbers(1).reshape(-1)[0])
        if ratio:
            raise node.fail("training mode draws random numbers")
    return [x, g.full(x.shape, True, DType.BOOL) if len(node.outputs) > 1 else None]
