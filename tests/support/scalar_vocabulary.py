"""The scalar ops of the package by their form, as tests go over them."""

from mansard.ir.scalar_ops import COMPARE, scalar_ops

UNARY = frozenset(op.name for op in scalar_ops() if op.arity == 1)
BINARY = frozenset(op.name for op in scalar_ops() if op.arity == 2) - COMPARE

__all__ = ["BINARY", "COMPARE", "UNARY"]
