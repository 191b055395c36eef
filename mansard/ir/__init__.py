"""The Graph IR: a small SSA op set over typed tensors with symbolic dims.

``types`` and ``scalar`` are the vocabulary; ``ops`` and ``scalar_ops`` declare the op set, one module for
each op or family; ``graph`` holds a program. ``verify``, ``interpreter``, ``printer``, ``parser`` and
``serialise`` go by the declarations. ``dispatch`` is the IR after fusion.
"""

from mansard.ir.graph import Graph, GraphBuilder
from mansard.ir.ops import (
    Assert,
    Attention,
    Concat,
    Generic,
    Op,
    Pad,
    Reshape,
    Scan,
    Scatter,
    Slice,
    Sort,
)
from mansard.ir.scalar_ops import Domain, ScalarOp, register_scalar_op
from mansard.ir.types import Constant, IndexMap, Linear, Location, TensorType, Value

__all__ = [
    "Assert",
    "Attention",
    "Concat",
    "Constant",
    "Domain",
    "Generic",
    "Graph",
    "GraphBuilder",
    "IndexMap",
    "Linear",
    "Location",
    "Op",
    "Pad",
    "Reshape",
    "ScalarOp",
    "Scan",
    "Scatter",
    "Slice",
    "Sort",
    "TensorType",
    "Value",
    "register_scalar_op",
]
