"""Ops that compute on tensors of bounded size as on any other: the valid elements of the result follow from
those of the operands, at the same places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mansard.frontends.pytorch.bounded.sizes import Shape, is_open, open_axes
from mansard.frontends.pytorch.scalars import is_number

_UNCHANGED = frozenset({
    "permute", "transpose", "t", "unsqueeze", "squeeze", "alias", "detach", "clone", "convert_element_type",
    "_to_copy", "full_like", "zeros_like", "ones_like", "empty_like", "cumsum", "cumprod", "cummax", "cummin",
    "logcumsumexp", "tril", "triu", "lift_fresh_copy", "contiguous",
})  # fmt: skip
"""Ops of which the first elements of the result follow from the first of the operand, along every axis."""
_ALONG = {"select": 1, "slice": 1, "unbind": 1, "split": 2, "split_with_sizes": 2, "flip": 1}
"""The operand that is the axis of an op which leaves the others alone."""
_BATCHED = frozenset({
    "convolution", "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "upsample_nearest2d", "upsample_bilinear2d", "native_group_norm",
    "_native_batch_norm_legit_no_training", "max_pool2d", "max_pool1d", "grid_sampler_2d", "constant_pad_nd",
})  # fmt: skip
"""Ops that treat each entry of the first axis alone."""


def shapes_of(value: Any) -> list[Shape]:
    """The shapes of the tensors among a node's results."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v.shape for v in values if isinstance(v, torch.Tensor)]


def name_of(node: Any) -> str:
    """The name of a call's op, without its overload."""
    return str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))


def is_elementwise(node: Any) -> bool:
    """Whether an element of the result follows from the operands' elements at its place."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or name_of(node) == "where"


def is_unchanged(
    node: Any, operands: Sequence[Any], shapes: Mapping[Any, Shape], limit: Callable[[Any], Any]
) -> bool:
    """Whether a node may stay as it is: ``operands`` are its tensors, ``shapes`` those that they have in the
    program, where they have bounds now, and ``limit`` gives the bound of a size. Raises NoFormError."""
    if not operands:
        return False
    name, first = name_of(node), operands[0]
    shape = shapes.get(first) or tuple(first.meta["val"].shape)
    opened, result = open_axes(shape), shapes_of(node.meta["val"])[0]
    if is_elementwise(node):
        return _is_aligned(operands, [limit(size) for size in result])
    if name in _UNCHANGED:
        return True
    if name == "scaled_dot_product_attention":
        keys = [shapes.get(n) or tuple(n.meta["val"].shape) for n in node.args[1:3]]
        return all(len(s) - 2 not in open_axes(s) for s in keys)
    if name in _BATCHED:
        others = any(n in shapes for n in node.args[1:] if isinstance(n, torch.fx.Node))
        padded = node.args[1] if name == "constant_pad_nd" else ()
        inner = len(padded) // 2 < len(result)
        return opened == [0] and open_axes(result) == [0] and not others and inner
    if name in _ALONG:
        given = node.args[_ALONG[name]] if len(node.args) > _ALONG[name] else node.kwargs.get("dim", 0)
        axes = [d % len(shape) for d in (given if isinstance(given, (list, tuple)) else [given])]
        numbers = any(is_number(n) and is_open(n.meta["val"]) for n in node.all_input_nodes)
        return not numbers and not set(axes) & set(opened)
    return False


def _is_aligned(operands: Sequence[Any], bounds: Sequence[Any]) -> bool:
    """Whether operands of an elementwise op have the bounds of the result."""
    for operand in operands:
        for size, bound in zip(reversed(operand.meta["val"].shape), reversed(bounds), strict=False):
            if isinstance(size, int) and isinstance(bound, int) and size not in (1, bound):
                return False
    return True
