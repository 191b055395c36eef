"""Log-probabilities of tokens under the model's distribution."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.ir.graph import GraphBuilder
from mansard.ir.scalar import Apply, Arg, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Value
from mansard.plan.sampling_inputs import RANKED

F32 = DType.F32
_ROW, _FIRST, _ONE = IndexMap.of_dims((0, 1)), IndexMap.of_dims((0, None)), IndexMap.of_dims((0,))
"""An element of the row, the row's first element, and the row's only one."""


@dataclass(frozen=True)
class Scores:
    """Of each sequence the log-probability (B) f32 of the chosen token, and the most likely tokens, in order
    (B, K) i64, with theirs (B, K) f32. K is `RANKED`, or the vocabulary if that is smaller."""

    chosen: Value
    ranked: Value
    ranked_scores: Value


def write_scores(builder: GraphBuilder, logits: Value, token: Value) -> Scores:
    """Scores from logits (B, V) f32 and the chosen tokens (B) i64: those of the model itself, before a
    temperature or a penalty."""
    batch, vocabulary = logits.type.shape
    assert isinstance(vocabulary, int)
    count = min(RANKED, vocabulary)
    best, order = builder.sort(logits, 1, descending=True, limit=count)
    total = builder.generic(
        (logits, best),
        (_ROW, _FIRST),
        (batch, vocabulary),
        Apply("exp", (_difference(Arg(0, F32), Arg(1, F32)),), F32),
        reduced=1,
        combiner="add",
        name="partition_function",
    )

    def score(value: Scalar) -> Scalar:
        return _difference(_difference(value, Arg(1, F32)), Apply("log", (Arg(2, F32),), F32))

    ranked = builder.generic(
        (best, best, total), (_ROW, _FIRST, _ONE), (batch, count), score(Arg(0, F32)), name="ranked_scores"
    )
    of_token = Gather(3, (Index(0), Arg(0, DType.I64)), F32)
    chosen = builder.generic(
        (token, best, total, logits), (_ONE, _FIRST, _ONE, None), (batch,), score(of_token), name="score"
    )
    return Scores(chosen, order, ranked)


def _difference(a: Scalar, b: Scalar) -> Scalar:
    return Apply("sub", (a, b), F32)
