"""Windows over (N, spatial…, C), as TFLite states them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard.dims import DimLike
from mansard.frontends.emission.windows import Window, same_window, window
from mansard.frontends.tflite.node import Node

SAME = 0


def window_of(
    node: Node,
    spatial: Sequence[DimLike],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int] | None = None,
) -> Window:
    """The window of a node's padding."""
    dilations = dilations or [1] * len(kernel)
    if min((*kernel, *strides, *dilations)) < 1:
        raise node.fail(f"a window of {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}")
    if node.integer("padding") == SAME:
        return same_window(spatial, kernel, strides, dilations)
    result = window(spatial, kernel, strides, dilations, [(0, 0)] * len(kernel))
    if any(isinstance(d, int) and d < 1 for d in result.sizes):
        raise node.fail(f"windows of {list(kernel)} in {list(spatial)}")
    return result


def strides_of(node: Node) -> list[int]:
    """The strides of two dims."""
    return [node.integer("stride_h"), node.integer("stride_w")]


def dilations_of(node: Node) -> list[int]:
    """The dilations of two dims."""
    if node.operator.options is None:
        return [1, 1]
    return [node.integer("dilation_h_factor"), node.integer("dilation_w_factor")]


def whole(node: Node, sizes: Sequence[DimLike]) -> list[int]:
    """Sizes of a kernel, which have to be numbers."""
    if not all(isinstance(d, int) for d in sizes):
        raise node.fail("a kernel of symbolic size")
    return [d for d in sizes if isinstance(d, int)]


def without_margin(window: Window) -> Window:
    """The window over a tensor that has its margin already."""
    none = (0,) * window.rank
    return replace(window, low=none, high=none, stated_high=none)
