"""Lane shuffles: square transposes in registers, and horizontal sums of several vectors at once."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.dtypes import DType


def transpose(b: KernelBuilder, rows: Sequence[KValue]) -> list[KValue]:
    """The columns of a square matrix given as its rows: ``n`` vectors of ``n`` lanes, a power of two.

    In log2(n) stages; each swaps the off-diagonal squares of 2 x 2 blocks, twice as large as before.
    """
    count = len(rows)
    assert count & (count - 1) == 0 and all(r.type.lanes == count for r in rows)
    if count == 1:
        return list(rows)
    if rows[0].type.dtype is DType.BOOL:
        # Vectors of one bit per lane cannot be shuffled.
        widened = transpose(b, [b.cast(r, DType.I32) for r in rows])
        return [b.cast(w, DType.BOOL) for w in widened]
    current = list(rows)
    step = 1
    while step < count:
        low = [lane if not lane & step else count + lane - step for lane in range(count)]
        high = [lane + step if not lane & step else count + lane for lane in range(count)]
        following = list(current)
        for i in range(count):
            if not i & step:
                pair = current[i], current[i + step]
                following[i] = b.shuffle(*pair, low)
                following[i + step] = b.shuffle(*pair, high)
        current = following
        step *= 2
    return current


def side_by_side(b: KernelBuilder, scalars: Sequence[KValue]) -> KValue:
    """Scalars as the lanes of a vector."""
    result = b.splat(scalars[0], len(scalars))
    for lane, scalar in enumerate(scalars[1:], 1):
        result = b.insert(result, scalar, lane)
    return result


def sum_each(b: KernelBuilder, vectors: Sequence[KValue]) -> KValue:
    """The horizontal sums of several vectors, one per lane; a scalar for one vector.

    The number of vectors is a power of two, at most the number of lanes (unless these are scalars). Pairs of
    vectors are folded into one with partial sums of both, so that ``n`` sums cost little more than ``n``
    additions.
    """
    count, lanes = len(vectors), vectors[0].type.lanes
    assert count & (count - 1) == 0 and (count <= lanes or lanes == 1)
    if lanes == 1 and count > 1:
        return side_by_side(b, vectors)
    current = list(vectors)
    width = lanes  # lanes that hold partial sums of one vector
    while len(current) > 1 and width > 1:
        half = width // 2
        pieces = range(0, lanes, width)
        # The lower and the upper half of each vector's partial sums, the first vector's before the second's.
        low = [start + i for start in pieces for i in range(half)]
        high = [start + half + i for start in pieces for i in range(half)]
        folded = []
        for x, y in zip(current[::2], current[1::2], strict=True):
            both = [low + [lanes + i for i in low], high + [lanes + i for i in high]]
            folded.append(b.add(b.shuffle(x, y, both[0]), b.shuffle(x, y, both[1])))
        current, width = folded, half
    (total,) = current
    while width > 1:
        half = width // 2
        pieces = range(0, total.type.lanes, width)
        low = [start + i for start in pieces for i in range(half)]
        high = [start + half + i for start in pieces for i in range(half)]
        if len(low) == 1:
            return b.add(b.extract(total, low[0]), b.extract(total, high[0]))
        total = b.add(b.shuffle(total, total, low), b.shuffle(total, total, high))
        width = half
    return total
