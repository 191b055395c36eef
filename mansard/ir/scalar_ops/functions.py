"""Elementary functions of floats."""

from __future__ import annotations

import math

import numpy as np

from mansard.ir.scalar_ops.declaration import FUNCTION, Array, Reference, ScalarOp, on_floats
from mansard.ir.scalar_ops.registry import register_scalar_op


def _erf(x: Array) -> Array:
    x = np.asarray(x)
    flat = np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size)
    return np.asarray(flat.reshape(x.shape), x.dtype)


def _rsqrt(x: Array) -> Array:
    return np.asarray(np.divide(x.dtype.type(1), np.sqrt(x)))


_ROOTS: dict[str, Reference] = {"sqrt": np.sqrt, "rsqrt": _rsqrt}
"""One instruction each, and a slow one."""
_POLYNOMIALS: dict[str, Reference] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "erf": _erf, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh, "sinh": np.sinh,
    "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
}  # fmt: skip

for _name, _reference in _ROOTS.items():
    register_scalar_op(ScalarOp(_name, 1, on_floats(_reference), recomputable=False))
for _name, _reference in _POLYNOMIALS.items():
    register_scalar_op(ScalarOp(_name, 1, on_floats(_reference), operations=FUNCTION, recomputable=False))
register_scalar_op(ScalarOp("atan2", 2, on_floats(np.arctan2), operations=FUNCTION, recomputable=False))
