"""Weights in floats of 12 bits (`mansard.ir.float12`), and what products with them consist of.

Before::

    %y[d0, d1] = sum(d2) %x[d0, d2] * %w[d1, d2]                                      %w: 64x128xbf16

After, where x has few rows and a row of the weight two exceptions at most::

    %s[d0, d1] = sum(d2) %x[d0, d2] * value(%w.high[d1, d2], %w.low[d1, d2])
    %y[d0, d1] = (%s[d0, d1] + difference(%w.exceptions[0, d1]) * %x{d0, column(%w.exceptions[0, d1])}
                             + difference(%w.exceptions[1, d1]) * %x{d0, column(%w.exceptions[1, d1])})
                 * %w.factors[d1]

Many rows are multiplied with a bf16 that is made of the numbers and exceptions first.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from mansard.analysis.linear import to_scalar
from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.hal.float12 import float12_exceptions, to_float12
from mansard.hal.small_integers import native_floats
from mansard.ir import float12
from mansard.ir.float12 import Float12Weight
from mansard.ir.graph import fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, Cast, Gather, Index, Scalar
from mansard.ir.types import Constant, IndexMap, Linear, Value
from mansard.passes.products.quantiser import Array

F32, BF16, I32 = DType.F32, DType.BF16, DType.I32
NAMED = 5
"""The most weights that a warning names."""


def words_of_rows(
    weights: Iterable[tuple[Value, Constant, bool]], factors: Iterable[tuple[Value, Value]]
) -> dict[Value, int]:
    """Words of a row for each weight that floats of 12 bits can represent, with exceptions if need be. Each
    weight comes with its constant and whether it is (K, N); ``factors`` are pairs of a weight and what it is
    multiplied with.

    Weights that are multiplied with the same value have as many words, so that their products can become one
    (`mansard.passes.fusion.horizontal_fusion`). Warns of weights that cannot be represented so; raises
    CompileError for elements that are not finite.
    """
    weights = list(weights)
    found = {value: _exceptions(value, source, transposed) for value, source, transposed in weights}
    words = {value: n for value, n in found.items() if n is not None}
    kept = [source.key for value, source, _ in weights if value not in words]
    if kept:
        warnings.warn(
            f"{len(kept)} of {len(weights)} weights stay as they are, not being exact in floats of 12 bits: "
            f"a row has more than {float12.MOST_EXCEPTIONS} elements outside any sixteen powers of two, or "
            f"more than {float12.NO_PLACE} elements ({', '.join(kept[:NAMED])}{', …' * (len(kept) > NAMED)})",
            stacklevel=2,
        )
    of_value: dict[Value, list[Value]] = {}
    for weight, x in factors:
        if weight in words:
            of_value.setdefault(x, []).append(weight)
    for side_by_side in of_value.values():
        words |= dict.fromkeys(side_by_side, max(words[weight] for weight in side_by_side))
    return words


_counted: WeakKeyDictionary[Constant, dict[bool, int]] = WeakKeyDictionary()
"""By constant and order what `_most_exceptions` gave: the methods of a model read the same weights."""


def _exceptions(value: Value, source: Constant, transposed: bool) -> int | None:
    """How many exceptions a row of a weight has at most, if they are few."""
    depth = value.type.shape[0 if transposed else 1]
    if not isinstance(depth, int) or depth > float12.NO_PLACE:
        return None
    of_constant = _counted.setdefault(source, {})
    if transposed not in of_constant:
        of_constant[transposed] = _most_exceptions(value, source, transposed)
    most = of_constant[transposed]
    return most if most <= float12.MOST_EXCEPTIONS else None


def _most_exceptions(value: Value, source: Constant, transposed: bool) -> int:
    weight = load(value, source)
    most = float12_exceptions(*native_floats(weight.T if transposed else weight))
    if most is None:
        raise _not_finite(source.key)
    return most


class Float12Data:
    """The stored data of one weight, computed when it is loaded. The nibbles are kept until they are loaded,
    too, as they are computed with the bytes."""

    def __init__(self, value: Value, source: Constant, transposed: bool, words: int) -> None:
        self.value, self.source, self.transposed, self.words = value, source, transposed, words
        self.next: Array | None = None
        self.small: tuple[Array, Array] | None = None

    def _numbers(self) -> tuple[Array, Array]:
        weight = load(self.value, self.source)
        numbers = to_float12(*native_floats(weight.T if self.transposed else weight), self.words)
        if numbers is None:
            raise _not_finite(self.source.key)
        high, low, factors, words = numbers
        self.small = factors, words
        return high, low.view(DType.U4.numpy)

    def high(self) -> Array:
        """The bytes (N, K)."""
        high, self.next = self._numbers()
        return high

    def low(self) -> Array:
        """The nibbles (N, K)."""
        low, self.next = self.next, None
        return low if low is not None else self._numbers()[1]

    def factors(self) -> Array:
        """The factors (N,)."""
        return self._small()[0]

    def exceptions(self) -> Array:
        """The words (R, N)."""
        return self._small()[1]

    def _small(self) -> tuple[Array, Array]:
        if self.small is None:
            self._numbers()
        assert self.small is not None
        return self.small


def _not_finite(key: str) -> CompileError:
    return CompileError(f"weight {key!r} cannot be stored in float12: it has elements that are not finite")


def takes_exceptions(index_map: IndexMap, inner: int) -> bool:
    """Whether the element of x that an exception is multiplied with can be named: the dim ``inner``, over
    which products are added up, is an axis of x by itself."""
    return all(r.single == inner or all(d != inner for d, _ in r.terms) for r in index_map.results)


def scaled_sums(
    sums: Value, weight: Float12Weight, x: Value, index_map: IndexMap, column: int, out: Value
) -> Generic:
    """The sums of products with a weight's numbers and those with its exceptions, times the factors of its
    rows.

    ``x`` has been read by ``index_map`` for the sums, whose dim behind the last is the one of K; ``column``
    is the dim of the weight's rows.
    """
    rank, depth = sums.type.rank, weight.high.type.shape[1]
    assert isinstance(depth, int)
    if weight.exceptions is None:
        return scaled(sums, weight, column, out)
    inputs, maps = [sums, weight.factors, x], [IndexMap.identity(rank), _row(column), None]
    total: Scalar = Arg(0, F32)
    for read in _word_reads(weight, column):
        word = Arg(len(inputs), I32)
        inputs.append(weight.exceptions)
        maps.append(read)
        place = float12.column(word, depth)
        indices = tuple(place if r.single == rank else to_scalar(r) for r in index_map.results)
        element: Scalar = Gather(2, indices, x.type.dtype)
        element = element if x.type.dtype is F32 else Cast(element, F32)
        total = Apply("add", (total, Apply("mul", (element, float12.difference(word)), F32)), F32)
    return _scaled(total, inputs, maps, out)


def scaled(sums: Value, weight: Float12Weight, column: int, out: Value) -> Generic:
    """The sums of products with numbers, times the factors of the weight's rows."""
    maps = [IndexMap.identity(sums.type.rank), _row(column)]
    return _scaled(Arg(0, F32), [sums, weight.factors], maps, out)


def _row(column: int) -> IndexMap:
    return IndexMap((Linear.dim(column),))


def _word_reads(weight: Float12Weight, row: int) -> list[IndexMap]:
    """How the words are read of the weight's row that a dim counts."""
    return [IndexMap((Linear((), number), Linear.dim(row))) for number in range(weight.words)]


def _scaled(total: Scalar, inputs: Sequence[Value], maps: Sequence[IndexMap | None], out: Value) -> Generic:
    whole: Scalar = Apply("mul", (total, Arg(1, F32)), F32)
    if out.type.dtype is not F32:
        whole = Cast(whole, out.type.dtype)
    return Generic(tuple(inputs), (out,), out.type.shape, tuple(maps), whole)


def unpacked(weight: Float12Weight, taken: set[str]) -> Generic:
    """The op that makes a weight's numbers bf16, exceptions what they would have to be. Its result's name is
    added to ``taken``."""
    out = Value(fresh_name(taken, f"{weight.high.name}.bf16"), replace(weight.high.type, dtype=BF16))
    inputs, maps = [weight.high, weight.low], [IndexMap.identity(2)] * 2
    if weight.exceptions is not None:
        inputs += [weight.exceptions] * weight.words
        maps += _word_reads(weight, 0)
    words = (Arg(2 + number, I32) for number in range(weight.words))
    exact = float12.replaced(float12.bits(Arg(0, DType.U8), Arg(1, DType.U4)), Index(1), words)
    return Generic(tuple(inputs), (out,), out.type.shape, tuple(maps), float12.as_bf16(exact))
