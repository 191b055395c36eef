"""Logic on bool and on the bits of integers, and shifts."""

from __future__ import annotations

import numpy as np

from mansard.ir.scalar_ops.declaration import Array, Infix, ScalarOp, on_bits, on_integers
from mansard.ir.scalar_ops.registry import register_scalar_op


def _not(x: Array) -> Array:
    return np.invert(x)


for _op in (
    ScalarOp("not", 1, on_bits(_not)),
    ScalarOp("and", 2, on_bits(np.bitwise_and), infix=Infix("&", 3)),
    ScalarOp("or", 2, on_bits(np.bitwise_or), infix=Infix("|", 1)),
    ScalarOp("xor", 2, on_bits(np.bitwise_xor), infix=Infix("^", 2)),
    ScalarOp("shl", 2, on_integers(np.left_shift), infix=Infix("<<", 4)),
    ScalarOp("shr", 2, on_integers(np.right_shift), infix=Infix(">>", 4)),
):
    register_scalar_op(_op)
