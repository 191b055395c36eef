"""Attention, kept whole until a pass lowers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.interpreter.scalar import Array, to_register, to_storage
from mansard.ir.op_check import OpCheck
from mansard.ir.ops.base import Op
from mansard.ir.ops.registry import register_op
from mansard.ir.shapes import same_dim
from mansard.ir.text.attributes import NUMBER, Flag, Keyword
from mansard.ir.types import Value


@register_op
@dataclass(frozen=True, eq=False)
class Attention(Op):
    """Scaled dot-product attention, kept whole.

    ``inputs = (query, key, value[, mask])`` of shapes (B, Hq, Q, D), (B, Hk, S, D), (B, Hk, S, Dv);
    ``Hq`` is a multiple of ``Hk`` (grouped heads). ``mask`` broadcasts to (B, Hq, Q, S): bool (true
    keeps) or float (added to the scaled scores). ``causal`` keeps ``s <= q``. A row without keys, and one
    that masks hide whole (with false, or minus infinity), gives zeros, as PyTorch does.
    With ``softcap`` the scaled scores become ``softcap * tanh(scores / softcap)`` before they are masked
    (Gemma 2, arXiv:2408.00118).
    """

    scale: float
    causal: bool = False
    softcap: float | None = None

    attributes = (Keyword("scale", NUMBER), Flag("causal"), Keyword("softcap", NUMBER, optional=True))

    def verify(self, check: OpCheck) -> None:
        """Shapes as stated; head counts are known."""
        check.counts((3, 4), 1)
        query, key, value = self.inputs[:3]
        for operand in self.inputs[:3]:
            if operand.type.rank != 4:
                raise check.fail(f"{operand} has rank {operand.type.rank}, not 4")
        dtype = query.type.dtype
        if not dtype.is_float:
            raise check.fail(f"{query} is {dtype.value}, not a float type")
        (batch, heads, rows, depth), (_, key_heads, length, _) = query.type.shape, key.type.shape
        check.typed(key, (batch, key_heads, length, depth), dtype)
        check.typed(value, (batch, key_heads, length, value.type.shape[3]), dtype)
        if not (isinstance(heads, int) and isinstance(key_heads, int) and key_heads > 0):
            raise check.fail(f"head counts {heads} and {key_heads} are not positive ints")
        if heads % key_heads:
            raise check.fail(f"{heads} query heads are not a multiple of {key_heads} key heads")
        check.typed(self.output, (batch, heads, rows, value.type.shape[3]), dtype)
        if len(self.inputs) == 4:
            _verify_mask(check, self.inputs[3], (batch, heads, rows, length))
        if self.softcap is not None and not self.softcap > 0:
            raise check.fail(f"softcap {self.softcap} is not positive")

    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """Head by head."""
        dtype = self.output.type.dtype
        q, k, v = (to_register(a, dtype) for a in operands[:3])
        batch, heads, rows, _ = q.shape
        group = heads // k.shape[1]
        length = k.shape[2]
        mask = None
        if len(operands) == 4:
            mask = np.broadcast_to(operands[3], (batch, heads, rows, length))
        kept = np.arange(length) <= np.arange(rows)[:, None] if self.causal else None
        out = np.empty((batch, heads, rows, v.shape[3]), q.dtype)
        for b in range(batch):
            for h in range(heads):
                scores = q[b, h] @ k[b, h // group].T * q.dtype.type(self.scale)
                if self.softcap is not None:
                    cap = q.dtype.type(self.softcap)
                    scores = cap * np.tanh(scores / cap)
                row_mask = None if mask is None else mask[b, h]
                out[b, h] = _softmax(scores, row_mask, kept) @ v[b, h // group]
        return [to_storage(out, dtype)]


def _verify_mask(check: OpCheck, mask: Value, scores: Sequence[DimLike]) -> None:
    if not (mask.type.dtype is DType.BOOL or mask.type.dtype.is_float):
        raise check.fail(f"mask {mask} is {mask.type.dtype.value}, not bool or float")
    if mask.type.rank > 4:
        raise check.fail(f"mask {mask} has rank {mask.type.rank}, more than 4")
    skipped = 4 - mask.type.rank
    for i, d in enumerate(mask.type.shape):
        if d != 1 and not same_dim(d, scores[skipped + i]):
            shape = ", ".join(map(str, scores))
            raise check.fail(f"mask {mask} of type {mask.type} does not broadcast to ({shape})")


def _softmax(scores: Array, mask: Array | None, kept: Array | None) -> Array:
    """Row softmax of masked scores; rows that masks hide whole are zero."""
    if mask is not None and mask.dtype != np.bool_:
        scores = scores + mask.astype(scores.dtype)
    elif mask is not None:
        kept = mask if kept is None else kept & mask
    if kept is not None:
        scores = np.where(kept, scores, -np.inf)
    if scores.shape[1] == 0:
        return scores
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    if mask is not None or kept is not None:
        hidden = (scores == -np.inf).all(axis=1, keepdims=True)
        probabilities = np.where(hidden, 0, probabilities)
    return np.asarray(probabilities, scores.dtype)
