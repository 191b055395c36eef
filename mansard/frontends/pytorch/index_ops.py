"""The ops that take indices: which operand, of which dim, and whether negative ones count from the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
"""Element types of indices; bool and uint8 tensors are masks."""
_WRAPPING = frozenset({"index", "index_put", "index_fill", "take", "put", "__getitem__", "__setitem__"})
"""Ops for which an index of -1 is the last element. For the others it is out of range, as in PyTorch."""
_ALWAYS_IN_RANGE = frozenset({
    "take_along_dim", "pad", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", "upsample_nearest_exact1d",
    "upsample_nearest_exact2d", "upsample_nearest_exact3d",
})  # fmt: skip
"""Ops that PyTorch defines for every index, which it reduces to the dim's size, and ops whose decompositions
compute places within a dim."""

CONDITIONAL = "mansard.conditional"
"""Mark of a node, among its custom metadata, whose result may not be used: its indices are not checked."""


@dataclass(frozen=True)
class IndexUse:
    """Indices that an op reads: each must be below ``size``, which is dim ``axis`` of ``source``, or the
    number of classes where there is no source."""

    op: str
    indices: Any
    size: Any
    wraps: bool
    source: Any = None
    axis: int = 0


def index_uses(node: Any) -> Iterator[IndexUse]:
    """The index operands of a node of a decomposed program."""
    packet = str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))
    rule = _RULES.get(packet)
    name = _name(node, packet)
    if rule is None or name in _ALWAYS_IN_RANGE or CONDITIONAL in (node.meta.get("custom") or {}):
        return
    for indices, source, axis in rule(node):
        value = indices.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype not in _INTEGERS:
            continue
        if isinstance(source, torch.fx.Node):
            shape = source.meta["val"].shape
            size = shape[axis] if len(shape) else 1
            yield IndexUse(name, indices, size, name in _WRAPPING, source, axis % max(1, len(shape)))
        elif isinstance(source, int) and source > 0:
            yield IndexUse(name, indices, source, False)


def _name(node: Any, packet: str) -> str:
    """The op in the exported program that a node was decomposed from, without its overload."""
    sources = node.meta.get("from_node") or ()
    parts = str(getattr(sources[0], "target", "")).split(".") if sources else []
    name = parts[1] if len(parts) > 1 and parts[0] == "aten" else packet
    return name.strip("_") if not name.startswith("__") else name


def _argument(node: Any, position: int, name: str) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


Operand = tuple[Any, Any, int]
"""Indices, the tensor they index or a number of classes, and the dim."""


def _embedding(node: Any) -> Iterator[Operand]:
    yield node.args[1], node.args[0], 0


def _along_dim(node: Any) -> Iterator[Operand]:
    yield _argument(node, 2, "index"), node.args[0], _argument(node, 1, "dim")


def _indexed(node: Any) -> Iterator[Operand]:
    """Index tensors by dim; None takes a dim as a whole, and a mask takes as many dims as it has."""
    axis = 0
    for indices in _argument(node, 1, "indices"):
        value = None if indices is None else indices.meta["val"]
        if value is not None and value.dtype in _INTEGERS:
            yield indices, node.args[0], axis
        is_mask = value is not None and value.dtype in (torch.bool, torch.uint8)
        axis += value.dim() if is_mask and value is not None else 1


def _classes(node: Any) -> Iterator[Operand]:
    yield node.args[0], _argument(node, 1, "num_classes"), 0


_RULES: dict[str, Callable[[Any], Iterator[Operand]]] = {
    "embedding": _embedding,
    "_embedding_bag_forward_only": _embedding,
    "_embedding_bag": _embedding,
    "gather": _along_dim,
    "index_select": _along_dim,
    "scatter": _along_dim,
    "scatter_add": _along_dim,
    "scatter_reduce": _along_dim,
    "index_add": _along_dim,
    "index_copy": _along_dim,
    "index_fill": _along_dim,
    "index_reduce": _along_dim,
    "index": _indexed,
    "index_put": _indexed,
    "one_hot": _classes,
}
