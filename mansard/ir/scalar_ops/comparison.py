"""Comparisons, which give bool, and the choice between two values."""

from __future__ import annotations

import numpy as np

from mansard.ir.scalar_ops.declaration import Array, Infix, ScalarOp, on_all, on_floats
from mansard.ir.scalar_ops.registry import register_scalar_op


def _select(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


COMPARISONS = tuple(
    register_scalar_op(ScalarOp(name, 2, on_all(ufunc), gives_bool=True, infix=Infix(symbol, 0))).name
    for name, symbol, ufunc in (
        ("eq", "==", np.equal),
        ("ne", "!=", np.not_equal),
        ("lt", "<", np.less),
        ("le", "<=", np.less_equal),
        ("gt", ">", np.greater),
        ("ge", ">=", np.greater_equal),
    )
)
register_scalar_op(ScalarOp("isnan", 1, on_floats(np.isnan), gives_bool=True))
register_scalar_op(ScalarOp("isinf", 1, on_floats(np.isinf), gives_bool=True))
register_scalar_op(ScalarOp("select", 3, on_all(_select), conditional=True))
