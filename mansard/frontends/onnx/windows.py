"""The window that a node's attributes state."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.dims import DimLike
from mansard.frontends.emission.windows import Window, same_window, window
from mansard.frontends.onnx.node import Node


def window_of(node: Node, spatial: Sequence[DimLike], kernel: Sequence[int]) -> Window:
    """The window of a node's attributes."""
    rank = len(spatial)
    strides = node.ints("strides") or [1] * rank
    dilations = node.ints("dilations") or [1] * rank
    pads = node.ints("pads") or [0] * (2 * rank)
    auto = node.text("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return same_window(spatial, kernel, strides, dilations, upper=auto == "SAME_UPPER")
    margins: list[tuple[DimLike, DimLike]] = [
        (0, 0) if auto == "VALID" else (pads[i], pads[rank + i]) for i in range(rank)
    ]
    return window(spatial, kernel, strides, dilations, margins, ceiling=bool(node.integer("ceil_mode")))
