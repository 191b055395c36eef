"""The choice of the next token from logits, on the device.

A token is drawn by adding Gumbel noise to the logits and taking the largest (Gumbel, 1954; Maddison et al.,
2014, arXiv:1411.0030), so that one reduction over the vocabulary draws from any truncated distribution:
tokens below a threshold do not take part, and greedy choice is the same without noise.
"""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.decoders.layers.writer import Writer, add, cast, mul
from mansard.ir.scalar import Apply, Arg, Const, Index, Scalar
from mansard.ir.types import IndexMap, Linear, Value
from mansard.plan.sampling_inputs import CANDIDATES, DRAWS, SETTINGS

F32, I32, I64, BOOL = DType.F32, DType.I32, DType.I64, DType.BOOL
_INFINITY = float("inf")
_ROW, _FIRST = IndexMap.of_dims((0, 1)), IndexMap.of_dims((0, None))
"""An element of the row, and the row's first element."""


class Sampler:
    """Chooses the next token of each sequence of a batch, or of each of several ``rows`` of one sequence.

    ``settings`` (B, 4) f32 and ``draws`` (B, 3) i64 have the columns `SETTINGS` and `DRAWS`. Temperature 0
    is greedy; ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and ``repetition_penalty`` 1 change
    nothing. Ties at the
    edge of a truncated distribution all take part. Equal seeds and positions draw equal noise.
    """

    def __init__(self, writer: Writer, batch: int, vocabulary: int, rows: DimLike | None = None) -> None:
        self.writer, self.builder = writer, writer.builder
        self.batch, self.vocabulary = batch, vocabulary
        self.rows: DimLike = batch if rows is None else rows
        self._shared = rows is not None
        self.settings = self.builder.input("settings", (batch, len(SETTINGS)), F32)
        self.draws = self.builder.input("draws", (batch, len(DRAWS)), I64)

    def sequence_numbers(self, length: DimLike) -> Value:
        """The number of its sequence for each new token, (B * S) i32."""
        column = self.column("sequence")
        numbers = self.builder.generic(
            (self.draws,), (column,), (self.batch, length), cast(Arg(0, I64), I32), name="sequence"
        )
        return self.builder.reshape(numbers, (dims.mul(self.batch, length),))

    def penalised(self, logits: Value, seen: Value) -> Value:
        """Logits of tokens that occur in the sequence, divided by the penalty where positive, else multiplied
        (Keskar et al., 2019, arXiv:1909.05858). ``seen`` (B, V) i32 is the number of the last sequence in
        which a token occurred, counted modulo 2**31."""
        occurred = Apply("eq", (cast(Arg(1, I32), I64), Arg(3, I64)), BOOL)
        return self.builder.generic(
            (logits, seen, self.settings, self.draws),
            (_ROW, _ROW, self.column("repetition_penalty"), self.column("sequence")),
            (self.batch, self.vocabulary),
            _select(occurred, _penalised(Arg(0, F32), Arg(2, F32)), Arg(0, F32)),
            name="penalised",
        )

    def penalised_rows(self, logits: Value, first: Value) -> Value:
        """As `penalised` for rows of one sequence: ``first`` (1, V) i32 is the first row to which a token
        is one of the text."""
        occurred = Apply("le", (cast(Arg(1, I32), I64), Index(0)), BOOL)
        return self.builder.generic(
            (logits, first, self.settings),
            (_ROW, IndexMap.of_dims((None, 1)), self.column("repetition_penalty")),
            (self.rows, self.vocabulary),
            _select(occurred, _penalised(Arg(0, F32), Arg(2, F32)), Arg(0, F32)),
            name="penalised",
        )

    def token(self, logits: Value, positions: Value, *, restricted: bool = True) -> Value:
        """The chosen tokens (B) i64, which will stand at ``positions`` (B); of all tokens unless
        ``restricted``."""
        value, temperature, by_row = Arg(0, F32), Arg(1, F32), IndexMap.of_dims((0,))
        noisy = add(Apply("div", (value, temperature), F32), self._gumbel(Arg(3, I64), Arg(2, I64)))
        chosen = _select(_gt(temperature, _const(0.0)), noisy, value)
        inputs = [logits, self.settings, self.draws, positions]
        maps = [_ROW, self.column("temperature"), self.column("seed"), by_row]
        if restricted:
            inputs.append(self._threshold(logits))
            maps.append(by_row)
            kept = Apply("ge", (value, Arg(4, F32)), BOOL)
            chosen = _select(kept, chosen, _const(-_INFINITY))
        return self.builder.generic(
            inputs,
            maps,
            (self.rows, self.vocabulary),
            chosen,
            reduced=1,
            combiner="argmax",
            name="token",
        )

    def _threshold(self, logits: Value) -> Value:
        """The least logit (B) that takes part."""
        count = min(CANDIDATES, self.vocabulary)
        ranked = self._ranked(logits)
        best, _ = self.builder.sort(ranked, 1, descending=True, limit=count)
        total = self._exponentials(ranked, best, "total")
        probabilities = self._probabilities(best, total, count)
        before = self.builder.scan(probabilities, 1, inclusive=False)
        return self._least_kept(best, probabilities, before, count)

    def _ranked(self, logits: Value) -> Value:
        """Logits where the choice is restricted; elsewhere equal values, which a sort passes over quickly."""
        restricted = _restricted(Arg(1, F32), Arg(2, F32), Arg(3, F32), Arg(4, I64))
        names = ("temperature", "top_p", "min_p", "top_k")
        return self.builder.generic(
            (logits, self.settings, self.settings, self.settings, self.draws),
            (_ROW, *map(self.column, names)),
            (self.rows, self.vocabulary),
            _select(restricted, Arg(0, F32), _const(-_INFINITY)),
            name="ranked",
        )

    def _exponentials(self, logits: Value, best: Value, name: str) -> Value:
        """The sum (B) of exp((logit - largest) / temperature) over the vocabulary."""
        return self.builder.generic(
            (logits, best, self.settings),
            (_ROW, _FIRST, self.column("temperature")),
            (self.rows, self.vocabulary),
            _exponential(Arg(0, F32), Arg(1, F32), Arg(2, F32)),
            reduced=1,
            combiner="add",
            name=name,
        )

    def _probabilities(self, best: Value, total: Value, count: int) -> Value:
        body = Apply("div", (_exponential(Arg(0, F32), Arg(1, F32), Arg(2, F32)), Arg(3, F32)), F32)
        return self.builder.generic(
            (best, best, self.settings, total),
            (_ROW, _FIRST, self.column("temperature"), IndexMap.of_dims((0,))),
            (self.rows, count),
            body,
            name="probabilities",
        )

    def _least_kept(self, best: Value, probabilities: Value, before: Value, count: int) -> Value:
        """The candidates within top-k, top-p and min-p: the smallest of their logits, -inf if none of these
        restricts the choice."""
        top_p, min_p, top_k = Arg(4, F32), Arg(5, F32), Arg(6, I64)
        unlimited = Apply("le", (top_k, Const(0, I64)), BOOL)
        ranked = _or(unlimited, Apply("lt", (Index(1), top_k), BOOL))
        nucleus = Apply("lt", (Arg(2, F32), top_p), BOOL)
        likely = Apply("ge", (Arg(1, F32), mul(min_p, Arg(3, F32))), BOOL)
        first = Apply("eq", (Index(1), Const(0, I64)), BOOL)
        kept = _or(first, _and(ranked, _and(nucleus, likely)))
        restricted = _restricted(Arg(7, F32), top_p, min_p, top_k)
        body = _select(restricted, _select(kept, Arg(0, F32), _const(_INFINITY)), _const(-_INFINITY))
        return self.builder.generic(
            (best, probabilities, before, probabilities, *[self.settings] * 2, self.draws, self.settings),
            (_ROW, _ROW, _ROW, _FIRST, *map(self.column, ("top_p", "min_p", "top_k", "temperature"))),
            (self.rows, count),
            body,
            reduced=1,
            combiner="min",
            name="threshold",
        )

    @staticmethod
    def _gumbel(position: Scalar, seed: Scalar) -> Scalar:
        """-log(-log(u)) for a u in (0, 1) that follows from the seed, the position and the token."""
        bits = _mixed(add(cast(seed, I32), mul(cast(position, I32), Const(-1640531527, I32))))
        bits = _mixed(add(bits, cast(Index(1), I32)))
        mantissa = Apply("and", (Apply("shr", (bits, Const(8, I32)), I32), Const(0xFFFFFF, I32)), I32)
        uniform = mul(add(cast(mantissa, F32), _const(0.5)), _const(2.0**-24))
        return _neg(_log(_neg(_log(uniform))))

    def column(self, name: str) -> IndexMap:
        """Reads a setting of the row's sequence."""
        columns = SETTINGS if name in SETTINGS else DRAWS
        sequence = Linear() if self._shared else Linear.dim(0)
        return IndexMap((sequence, Linear((), columns.index(name))))


def _restricted(temperature: Scalar, top_p: Scalar, min_p: Scalar, top_k: Scalar) -> Scalar:
    """Whether a token is drawn, and not from the whole vocabulary."""
    fewer = _or(_gt(top_k, Const(0, I64)), _or(_gt(_const(1.0), top_p), _gt(min_p, _const(0.0))))
    return _and(_gt(temperature, _const(0.0)), fewer)


def _penalised(value: Scalar, penalty: Scalar) -> Scalar:
    divided = Apply("div", (value, penalty), F32)
    return _select(_gt(value, _const(0.0)), divided, mul(value, penalty))


def _const(value: float) -> Const:
    return Const(value, F32)


def _select(condition: Scalar, then: Scalar, otherwise: Scalar) -> Scalar:
    return Apply("select", (condition, then, otherwise), then.dtype)


def _gt(a: Scalar, b: Scalar) -> Scalar:
    return Apply("gt", (a, b), BOOL)


def _and(a: Scalar, b: Scalar) -> Scalar:
    return Apply("and", (a, b), BOOL)


def _or(a: Scalar, b: Scalar) -> Scalar:
    return Apply("or", (a, b), BOOL)


def _neg(x: Scalar) -> Scalar:
    return Apply("neg", (x,), F32)


def _log(x: Scalar) -> Scalar:
    return Apply("log", (x,), F32)


def _exponential(value: Scalar, largest: Scalar, temperature: Scalar) -> Scalar:
    """exp((value - largest) / temperature), with temperature 1 in place of 0, where it does not matter."""
    divisor = _select(_gt(temperature, _const(0.0)), temperature, _const(1.0))
    return Apply("exp", (Apply("div", (Apply("sub", (value, largest), F32), divisor), F32),), F32)


def _mixed(x: Scalar) -> Scalar:
    """The 32-bit finaliser of MurmurHash3 (Appleby, public domain), in wrapping arithmetic."""

    def folded(value: Scalar, distance: int) -> Scalar:
        moved = Apply("shr", (value, Const(distance, I32)), I32)
        kept = Apply("and", (moved, Const((1 << (32 - distance)) - 1, I32)), I32)  # a logical shift
        return Apply("xor", (value, kept), I32)

    x = mul(folded(x, 16), Const(0x85EBCA6B - (1 << 32), I32))
    x = mul(folded(x, 13), Const(0xC2B2AE35 - (1 << 32), I32))
    return folded(x, 16)
