"""Views: reshapes, broadcasts, transposes, concatenations."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.dims import DimLike
from mansard.frontends.emission.reductions import reversed_along
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.table import rule
from mansard.ir.ops import Reshape
from mansard.ir.types import Linear


@rule("stablehlo.reshape")
def reshape(g: StableHloImporter, node: Node) -> Tensor:
    """The same elements under another shape."""
    x = node.tensor(0)
    shape: Sequence[DimLike | None] = node.shape()
    if any(d is None for d in shape):
        shape = x.shape if x.rank == len(shape) else node.static_shape()
    return g.reshape(x, [d for d in shape if d is not None])


@rule("stablehlo.dynamic_reshape")
def dynamic_reshape(g: StableHloImporter, node: Node) -> Tensor:
    """A shape that is computed."""
    return g.reshape(node.tensor(0), g.result_shape(node, 1))


@rule("stablehlo.transpose")
def transpose(g: StableHloImporter, node: Node) -> Tensor:
    """The dims in another order."""
    return g.transpose(node.tensor(0), node.ints("permutation"))


@rule("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim", "stablehlo.broadcast")
def broadcast_in_dim(g: StableHloImporter, node: Node) -> Tensor:
    """Dims placed among those of a result, whose others repeat them."""
    x = node.tensor(0)
    if node.name == "stablehlo.broadcast":
        lead = node.ints("broadcast_sizes")
        return broadcast(g, x, (*lead, *x.shape), [len(lead) + i for i in range(x.rank)])
    dynamic = node.name.endswith("dynamic_broadcast_in_dim")
    shape = g.result_shape(node, 1) if dynamic else node.static_shape()
    return broadcast(g, x, shape, node.ints("broadcast_dimensions"))


def broadcast(g: StableHloImporter, x: Tensor, shape: Sequence[DimLike], places: Sequence[int]) -> Tensor:
    """``x`` repeated to a shape, in which ``places`` are its dims."""
    known = g.scalar_number(x)
    if known is not None:
        return g.splat(shape, known, x.dtype)
    repeated = [i for i in range(len(shape)) if i not in places and not g.is_one(shape[i])]
    grown = [p for a, p in enumerate(places) if g.is_one(x.shape[a]) and not g.is_one(shape[p])]
    if not repeated and not grown and list(places) == sorted(places):
        return g.ramp_moved(g.reshape(x, shape), x, places)
    body = g.body(shape)
    source, linear = _without_unit_dims(g, x, [Linear.dim(p) for p in places])
    return g.ramp_moved(g.finish(body, g.read(body, source, linear)), x, places)


def _without_unit_dims(g: StableHloImporter, x: Tensor, linear: list[Linear]) -> tuple[Tensor, list[Linear]]:
    """What a tensor that got dims of size 1 by a reshape was before, and where it is read."""
    producer = None if x.value is None else g.builder.producers.get(x.value)
    if not isinstance(producer, Reshape):
        return x, linear
    source = g.tensor(producer.inputs[0])
    kept = [i for i, d in enumerate(x.shape) if not g.is_one(d)]
    before = [i for i, d in enumerate(source.shape) if not g.is_one(d)]
    if len(kept) != len(before) or any(
        not g.same(x.shape[i], source.shape[j]) for i, j in zip(kept, before, strict=True)
    ):
        return x, linear
    moved = [Linear()] * source.rank
    for i, j in zip(kept, before, strict=True):
        moved[j] = linear[i]
    return source, moved


@rule("stablehlo.concatenate")
def concatenate(g: StableHloImporter, node: Node) -> Tensor:
    """Tensors one after another; those without elements are left out."""
    axis = node.integer("dimension")
    tensors = node.tensors()
    some = [t for t in tensors if not (isinstance(t.shape[axis], int) and t.shape[axis] == 0)]
    return g.concat(some or tensors[:1], axis)


@rule("stablehlo.reverse")
def reverse(g: StableHloImporter, node: Node) -> Tensor:
    """Axes from back to front."""
    x = node.tensor(0)
    if x.splat is not None:
        return x
    for axis in node.ints("dimensions"):
        x = reversed_along(g, x, axis)
    return x
