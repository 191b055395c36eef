"""Import of ``tm_tensor.attention`` as `Attention` with 4-D operands, undoing torch-mlir's broadcasts.

torch-mlir merges batch and heads, repeats keys and values for every query head that shares them, broadcasts
the mask over all heads, and replaces a causal flag by a mask of index comparisons. This module traces the
operands back to their sources::

    k: (B, Hk, S, D) -> copy (B, Hk, G, S, D) -> view (B*Hk*G, S, D)     becomes  k: (B, Hk, S, D)
    mask: (B, 1, Q, S) -> copy (B, H, Q, S) -> view (B*H, Q, S)          becomes  mask: (B, 1, Q, S)

The copies then have no users and are removed at the end of the import.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mansard import dims
from mansard.dims import DimLike
from mansard.frontends.linalg.importer import Builder, Handler, Importer
from mansard.frontends.linalg.values import Splat, TensorEntry, shape_of
from mansard.ir.ops import Generic, Reshape
from mansard.ir.scalar import Apply, Arg, Const, Index, Scalar
from mansard.ir.types import Value


def import_attention(importer: Importer, op: Any) -> None:
    """``tm_tensor.attention``: query, key, value and an optional mask of equal leading dims."""
    operands = list(op.operands)
    count = len(operands) - 1  # the last one is the result's initial value, which is unused
    q, k, v = (importer.value(x) for x in operands[:3])
    if q.type.rank < 3:
        raise importer.unsupported(op, f"a query of rank {q.type.rank}; it must be (heads, length, depth)")
    mask = importer.tensor(operands[3]) if count == 4 else None
    depth = q.type.shape[-1]
    if "scale" in op.attributes:
        scale = float(op.attributes["scale"].value)
    elif isinstance(depth, int):
        scale = 1.0 / math.sqrt(depth)
    else:
        raise importer.unsupported(op, "a depth that is not a number, without a scale")
    result = build_attention(importer.builder, q, k, v, mask, scale)
    importer.bind(op, importer.builder.reshape(result, shape_of(importer.tensor(operands[-1]))))


def build_attention(
    builder: Builder, q: Value, k: Value, v: Value, mask: TensorEntry | None, scale: float
) -> Value:
    """The Attention op of operands with any leading dims (equal for all; the mask's too)."""
    query = _four_dims(builder, q)
    batch, heads = query.type.shape[:2]
    key, value = _grouped(builder, k, batch, heads), _grouped(builder, v, batch, heads)
    if key.type.shape[1] != value.type.shape[1]:
        key, value = (_as_heads(builder, x, batch, heads) for x in (k, v))
    causal, kept = _mask(builder, mask, (batch, heads, query.type.shape[2], key.type.shape[2]))
    return builder.attention(query, key, value, kept, scale, causal)


def _root(builder: Builder, x: Value) -> Value:
    producer = builder.producers.get(x)
    return producer.inputs[0] if isinstance(producer, Reshape) else x


def _four_dims(builder: Builder, q: Value) -> Value:
    """The query as (batch, heads, length, depth)."""
    if q.type.rank == 4:
        return q
    root = _root(builder, q)
    if root.type.rank == 4 and root.type.shape[2:] == q.type.shape[-2:] and _is_int(root.type.shape[1]):
        return root
    joined = dims.product(q.type.shape[:-2])
    if not isinstance(joined, int):  # the number of heads is static; a dynamic product is a batch
        return builder.reshape(q, (joined, 1, *q.type.shape[-2:]))
    return builder.reshape(q, (1, joined, *q.type.shape[-2:]))


def _is_int(d: DimLike) -> bool:
    return isinstance(d, int)


def _as_heads(builder: Builder, x: Value, batch: DimLike, heads: DimLike) -> Value:
    return builder.reshape(x, (batch, heads, *x.type.shape[-2:]))


def _grouped(builder: Builder, x: Value, batch: DimLike, heads: DimLike) -> Value:
    """Keys or values before their repetition for each group of query heads."""
    root = _root(builder, x)
    source = _copied(builder, root)
    if source is not None and root.type.rank == 5:
        whole, read_by = source
        shape = root.type.shape
        repeated = _without_units(read_by, shape) == _without_units((0, 1, 3, 4), shape)
        fits = dims.mul(shape[1], shape[2]) == heads and shape[3:] == x.type.shape[-2:]
        if repeated and fits and shape[0] == batch:
            return builder.reshape(whole, (batch, shape[1], *shape[3:]))
    return _as_heads(builder, x, batch, heads)


def _copied(builder: Builder, x: Value) -> tuple[Value, tuple[int | None, ...]] | None:
    """The operand and index map of a pure broadcast or transpose that reads all of its operand."""
    producer = builder.producers.get(x)
    if not (isinstance(producer, Generic) and isinstance(producer.body, Arg) and len(producer.inputs) == 1):
        return None
    (index_map,) = producer.maps
    plain = None if index_map is None else index_map.plain_dims
    if plain is None or producer.combiner:
        return None
    source = producer.inputs[0]
    whole = all(
        d == 1 if read is None else d == producer.extents[read]
        for d, read in zip(source.type.shape, plain, strict=True)
    )
    return (source, plain) if whole else None


def _without_units(read_by: Sequence[int | None], shape: Sequence[DimLike]) -> list[int]:
    """The dims read, without those of extent 1, whose only index is 0."""
    return [d for d in read_by if d is not None and shape[d] != 1]


def _mask(builder: Builder, mask: TensorEntry | None, scores: Sequence[DimLike]) -> tuple[bool, Value | None]:
    """Whether the mask is causal, and otherwise the mask before its broadcast."""
    if mask is None or (isinstance(mask, Splat) and _keeps_all(mask.scalar)):
        return False, None
    if not isinstance(mask, Value):
        raise TypeError(f"a mask of kind {type(mask).__name__} has no content")
    root = _root(builder, mask)
    producer = builder.producers.get(root)
    by_index = isinstance(producer, Generic) and not producer.inputs
    if by_index and isinstance(producer, Generic) and root.type.shape[-2:] == tuple(scores[2:]):
        rank = root.type.rank
        if _is_causal(producer.body, rank - 2, rank - 1):
            return True, None
    spread = _copied(builder, root)
    if spread is not None and root.type.shape == tuple(scores):
        whole, read_by = spread
        present = [d for d in read_by if d is not None]
        if present == sorted(present):
            shape = [scores[i] if i in present else 1 for i in range(4)]
            return False, builder.reshape(whole, shape)
    return False, builder.reshape(mask, scores)


def _keeps_all(scalar: Scalar) -> bool:
    return isinstance(scalar, Const) and (scalar.value is True or scalar.value == 0.0)


def _is_causal(body: Scalar, row: int, column: int) -> bool:
    """``column <= row``, as a bool mask or as 0 and minus infinity."""
    if isinstance(body, Apply) and body.op == "select":
        condition, kept, dropped = body.args
        values = isinstance(kept, Const) and isinstance(dropped, Const)
        if not values or kept != Const(0.0, kept.dtype) or dropped != Const(float("-inf"), dropped.dtype):
            return False
        body = condition
    forms = (
        Apply("ge", (Index(row), Index(column)), body.dtype),
        Apply("le", (Index(column), Index(row)), body.dtype),
    )
    return body in forms


HANDLERS: dict[str, Handler] = {
    "tm_tensor.attention": import_attention,
}
