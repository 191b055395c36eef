"""Whether what is added to a sum of integer products stands for the zero points of its operands.

``sum (a - za) * (b - zb) = sum a * b - zb * sum a - za * sum b + K * za * zb``: a graph adds sums of the
operands to its products, which have to be these, however they are written.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mansard.ir.types import Value
from mansard.regions.named.builder import Array, static
from mansard.regions.named.editor import Editor
from mansard.regions.named.evaluate import evaluate_op
from mansard.regions.named.ops import MatMul, Reduce
from mansard.regions.quantised.roundings import NARROW
from mansard.regions.quantised.sums import Sum


def corrected(e: Editor, s: Sum, zeros: Mapping[Value, int]) -> bool:
    """Whether a sum is one of real numbers for operands with these zero points.

    With constant weights, sums of them are constants, which the offset takes. Sums of values that are no
    constants are compared by what they give for random integers.
    """
    if isinstance(s.core, Reduce):
        return not s.corrections
    a, b = s.operands
    if b in e.constants and ((b.type.rank == 3 and isinstance(s.core, MatMul)) or not _turnable(e, s, b)):
        return False
    factors = {0: -zeros.get(b, 0), 1: -zeros.get(a, 0)}
    wanted = {
        side: factor for side, factor in factors.items() if factor and s.operands[side] not in e.constants
    }
    if not wanted and not s.corrections:
        return True
    if not isinstance(s.core, MatMul):
        return False
    leaves = _leaves(e, (a, b, *(value for value, _ in s.corrections)))
    for value, factor in s.corrections:
        side = next((k for k, f in wanted.items() if f == factor and _is_sum(e, s, k, value, leaves)), None)
        if side is None:
            return False
        del wanted[side]
    return not wanted


def implied_zero(e: Editor, s: Sum) -> int | None:
    """The zero point of an operand if what is added to its products with constant weights is nothing else."""
    if isinstance(s.core, Reduce) or s.operands[1] not in e.constants:
        return None
    per_step = offset_of_zeros(e, s, {s.operands[0]: 1})
    place = int(np.abs(per_step).argmax())
    if not per_step.flat[place] or (s.scale == 0).any():
        return None
    shift = np.broadcast_to(s.offset / s.scale, per_step.shape)
    zero = round(-float(shift.flat[place]) / float(per_step.flat[place]))
    return zero if np.allclose(shift, -zero * per_step, rtol=1e-5, atol=0.01) else None


def offset_of_zeros(e: Editor, s: Sum, zeros: Mapping[Value, int]) -> Array:
    """What the offset of a sum (in integers) lacks once its operands' zero points are subtracted."""
    a, b = s.operands
    if b in e.constants:
        weights = e.array(b).astype(np.int64)
        axis = tuple(range(1, weights.ndim)) if not isinstance(s.core, MatMul) else -2
        return np.asarray(zeros.get(a, 0) * weights.sum(axis)).astype(np.float64)
    summed = static(s.core.inputs[0].type.shape)[-1]
    return np.array([-float(summed * zeros.get(a, 0) * zeros.get(b, 0))])


def _turnable(e: Editor, s: Sum, weights: Value) -> bool:
    """Whether weights of channels with negative scales have opposites in their type."""
    array = e.array(weights)
    along = array if isinstance(s.core, MatMul) else np.moveaxis(array, 0, -1)
    negative = along[..., np.broadcast_to(s.scale < 0, along.shape[-1:])]
    return array.dtype.kind != "i" or not bool((negative == np.iinfo(array.dtype).min).any())


def _leaves(e: Editor, values: tuple[Value, ...]) -> dict[Value, Array]:
    """Random integers for the values of few bits that others are views or sums of."""
    rng, leaves, stack = np.random.default_rng(0), dict[Value, Array](), list(values)
    while stack:
        value = stack.pop()
        op = e.producer(value)
        if value in e.constants or value in leaves:
            continue
        if op is None or (value.type.dtype in NARROW and op.inputs[0].type.dtype not in NARROW):
            leaves[value] = rng.integers(0, 100, static(value.type.shape)).astype(value.type.dtype.numpy)
        else:
            stack.extend(op.inputs)
    return leaves


def _is_sum(e: Editor, s: Sum, side: int, value: Value, leaves: Mapping[Value, Array]) -> bool:
    """Whether a value is the sum of an operand along the products' summed dim, as the products lie."""
    operand = _evaluated(e, s.operands[side], leaves).astype(np.int32)
    expected = operand.sum(-1 if side == 0 else -2, keepdims=True, dtype=np.int32)
    result = np.broadcast_to(expected, static(s.core.output.type.shape))
    for view in s.views:
        if view.output.type.dtype is s.core.output.type.dtype:
            result = evaluate_op(view, [result], {})
    actual = _evaluated(e, value, leaves)
    return actual.ndim == result.ndim and bool((np.broadcast_to(actual, result.shape) == result).all())


def _evaluated(e: Editor, value: Value, leaves: Mapping[Value, Array]) -> Array:
    if value in leaves:
        return leaves[value]
    if value in e.constants:
        return e.array(value)
    op = e.producer(value)
    assert op is not None
    return evaluate_op(op, [_evaluated(e, v, leaves) for v in op.inputs], {})
