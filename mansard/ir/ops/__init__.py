"""The op set of the Graph IR: one module for each op, in which all about it stands together."""

from mansard.ir.combiners import COMBINERS
from mansard.ir.ops.assertion import Assert
from mansard.ir.ops.attention import Attention
from mansard.ir.ops.base import Op
from mansard.ir.ops.concat import Concat
from mansard.ir.ops.generic import Generic
from mansard.ir.ops.pad import Pad
from mansard.ir.ops.registry import OPS, find_op, register_op
from mansard.ir.ops.reshape import Reshape
from mansard.ir.ops.scan import Scan
from mansard.ir.ops.scatter import Scatter
from mansard.ir.ops.slice import Slice
from mansard.ir.ops.sort import Sort

__all__ = [
    "COMBINERS",
    "OPS",
    "Assert",
    "Attention",
    "Concat",
    "Generic",
    "Op",
    "Pad",
    "Reshape",
    "Scan",
    "Scatter",
    "Slice",
    "Sort",
    "find_op",
    "register_op",
]
