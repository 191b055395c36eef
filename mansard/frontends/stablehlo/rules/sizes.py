"""Arithmetic of sizes in MLIR's own dialects, which TensorFlow's exporter leaves around StableHLO."""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import broadcast_shape
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.stablehlo.entries import Entry, Token
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.table import enter, rule


@rule("shape.shape_of")
def shape_of(g: StableHloImporter, node: Node) -> Tensor:
    """The sizes of a tensor."""
    shape = node.tensor(0).shape
    return g.dim_content(shape, (len(shape),), DType.I64)


@rule("shape.broadcast")
def broadcast(g: StableHloImporter, node: Node) -> Tensor:
    """The common shape of tensors."""
    shape = broadcast_shape(*(tuple(node.dim_list(i)) for i in range(len(node.inputs))))
    return g.dim_content(shape, (len(shape),), DType.I64)


@rule("shape.cstr_broadcastable", "shape.cstr_require", "shape.cstr_eq", "shape.const_witness")
def witness(g: StableHloImporter, node: Node) -> Entry:
    """A condition that what follows checks by itself."""
    return Token()


@rule("shape.assuming")
def assuming(g: StableHloImporter, node: Node) -> list[Entry]:
    """A body under a condition."""
    return g.block(node.region(), [])


@rule("shape.num_elements")
def element_count(g: StableHloImporter, node: Node) -> Tensor:
    """The product of sizes."""
    return g.dim_content([dims.product(node.dim_list(0))], (), DType.I64)


@rule("shape.to_extent_tensor", "arith.index_cast", "arith.extsi", "arith.trunci", "tensor.cast")
def same(g: StableHloImporter, node: Node) -> Entry:
    """The operand."""
    return node.inputs[0]


@rule("tensor.dim")
def dim(g: StableHloImporter, node: Node) -> Tensor:
    """One size of a tensor."""
    (axis,) = node.dim_list(1)
    assert isinstance(axis, int)
    return g.dim_content([node.tensor(0).shape[axis]], (), DType.I64)


@rule("tensor.from_elements")
def from_elements(g: StableHloImporter, node: Node) -> Tensor:
    """Sizes as a tensor."""
    values = [node.dim_list(i)[0] for i in range(len(node.inputs))]
    return g.dim_content(values, node.static_shape(), DType.I64)


@rule("tensor.extract", "shape.get_extent")
def extract(g: StableHloImporter, node: Node) -> Tensor:
    """One of several sizes."""
    places = [node.dim_list(i)[0] for i in range(1, len(node.inputs))]
    element: DimLike = node.content(0)[tuple(int(str(p)) for p in places)]
    return g.dim_content([element], (), DType.I64)


@rule("shape.const_shape")
def constant_shape(g: StableHloImporter, node: Node) -> Tensor:
    """Known sizes."""
    return g.constant_tensor(node.attribute("shape"), "shape")


@rule("tf.Reshape")
def tensorflow_reshape(g: StableHloImporter, node: Node) -> Tensor:
    """The same elements under another shape, of which one size may be -1: what the others leave."""
    x, shape = node.tensor(0), node.dim_list(1)
    known = dims.product(d for d in shape if d != -1)
    rest = dims.exact_div(dims.product(x.shape), known)
    if -1 in shape and rest is None:
        raise node.fail(f"{list(x.shape)} as {shape}")
    return g.reshape(x, [rest if d == -1 and rest is not None else d for d in shape])


@rule("arith.constant", "shape.const_size")
def constant(g: StableHloImporter, node: Node) -> Tensor:
    """A number or a tensor of numbers."""
    attribute = node.attribute("value")
    if hasattr(attribute, "is_splat"):
        return g.constant_tensor(attribute, "weight")
    return g.dim_content([int(attribute.value)], (), DType.I64)


for _name, _function in {
    "arith.addi": dims.add, "arith.subi": dimmath.sub, "arith.muli": dims.mul,
    "arith.divsi": dimmath.floordiv, "arith.divui": dimmath.floordiv, "arith.remsi": dimmath.mod,
    "arith.remui": dimmath.mod, "arith.maxsi": dims.maximum, "arith.minsi": dims.minimum,
}.items():  # fmt: skip
    enter(
        _name,
        lambda g, node, f=_function: g.dim_content(  # type: ignore[misc]
            [f(node.dim_list(0)[0], node.dim_list(1)[0])], (), DType.I64
        ),
    )
