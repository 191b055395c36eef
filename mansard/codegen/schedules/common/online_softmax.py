"""Building blocks of the online softmax, shared by the attention schedules.

Maxima of scores (`KernelBuilder.larger`) may drop a NaN, which still reaches the sum of the row's
exponentials, and so the result.
"""

from __future__ import annotations

import math

from mansard import dims
from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.schedules.common.attention_nest import AttentionNest
from mansard.codegen.schedules.common.base import Frame
from mansard.dtypes import DType

LOG2_E = 1 / math.log(2)
LOWEST = -3.4028234663852886e38
"""The initial running maximum of a row: the lowest finite f32, so that differences are not NaN."""


def exp_native(b: KernelBuilder, x: KValue) -> KValue:
    """``exp(x)`` by the hardware's exp2, whose error is far below that of factors of 16 bits (GPU only)."""
    return b.unary("exp2_native", b.mul(x, b.const(LOG2_E, DType.F32)))


def reciprocal(frame: Frame, nest: AttentionNest, total: KValue) -> KValue:
    """One over a row's sum, which is clamped below by the form's least divisor; without keys, finite."""
    b, floor = frame.b, nest.form.divisor
    keys = nest.extents[nest.key_loop]
    if floor is not None:
        total = b.larger(b.const(floor, DType.F32), total)
    elif dims.bounds(keys)[0] == 0:
        empty = b.compare("eq", frame.ev.dim(keys), b.idx(0))
        one, total = b.match(b.const(1.0, DType.F32), total)
        total = b.select(b.splat(empty, total.type.lanes), one, total)
    return b.binary("div", b.const(1.0, DType.F32), total)


def divided(b: KernelBuilder, nest: AttentionNest, value: KValue, share: KValue, total: KValue) -> KValue:
    """Weighted sums of a row times the `reciprocal` of its sum ``total``; 0 where a guarded row has none."""
    result = b.binary("mul", value, share)
    if not nest.form.guarded:
        return result
    total, zero = b.match(total, b.const(0.0, DType.F32))
    positive = b.splat(b.compare("gt", total, zero), result.type.lanes)
    return b.select(positive, result, b.const(0.0, DType.F32))


def store_results(frame: Frame, nest: AttentionNest, total: KValue) -> None:
    """Store the weighted sum at the bound loops, and the results computed from it."""
    frame.ev.reduced[nest.form.weighted] = total
    for root in nest.roots:
        if root.stores and root not in nest.statistics:
            value = total if root is nest.weighted else frame.ev.root(root)
            frame.ev.store(root.op.output, nest.store_address(root), value)
