"""The vocabulary of scalar bodies, each op declared once.

Semantics that the references state for all domains:

* ``div``, ``rem`` on integers truncate towards zero, ``floordiv`` rounds down; a zero divisor gives 0.
* ``min``, ``max`` propagate NaN (IEEE 754-2019 minimum and maximum).
* ``round`` is half to even; ``shr`` is arithmetic on signed, logical on unsigned integers.
* comparisons give bool; ``ne`` is true for NaN operands, the others false.
"""

from mansard.ir.scalar_ops import arithmetic as arithmetic
from mansard.ir.scalar_ops import comparison as comparison
from mansard.ir.scalar_ops import functions as functions
from mansard.ir.scalar_ops import logic as logic
from mansard.ir.scalar_ops.declaration import Array, Domain, Infix, ScalarOp, domain_of
from mansard.ir.scalar_ops.registry import (
    find_scalar_op,
    register_scalar_op,
    result_dtype,
    scalar_op,
    scalar_ops,
)

COMPARE = frozenset(comparison.COMPARISONS)
"""The ops that compare two values: a closed set, whose order passes reason about."""

__all__ = [
    "COMPARE",
    "Array",
    "Domain",
    "Infix",
    "ScalarOp",
    "domain_of",
    "find_scalar_op",
    "register_scalar_op",
    "result_dtype",
    "scalar_op",
    "scalar_ops",
]
