"""Named ops: the small vocabulary of vendor toolchains, and the raising of a canonical Graph to it."""

from mansard.regions.named.graph import Encoding, NamedGraph
from mansard.regions.named.ops import (
    Broadcast,
    Concat,
    Conv,
    Elementwise,
    Gather,
    MatMul,
    NamedOp,
    Pad,
    Pool,
    Recode,
    Reduce,
    Reshape,
    Resize,
    Slice,
    Softmax,
    Transpose,
)

__all__ = [
    "Broadcast",
    "Concat",
    "Conv",
    "Elementwise",
    "Encoding",
    "Gather",
    "MatMul",
    "NamedGraph",
    "NamedOp",
    "Pad",
    "Pool",
    "Recode",
    "Reduce",
    "Reshape",
    "Resize",
    "Slice",
    "Softmax",
    "Transpose",
]
