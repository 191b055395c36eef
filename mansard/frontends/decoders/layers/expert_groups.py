"""Rows grouped by expert, so that the weights of an expert are read once for a group of rows.

The pairs of a row and one of its experts are put in order of their experts, those of each expert from a
multiple of the group's size on. A group then has rows of one expert, and a product over groups is an ordinary
batched one whose matrices are chosen by a computed index. Places that no pair takes compute what nothing
reads: less than a group for each expert, and the groups that another choice would have needed, 10 to 20 % of
all, unless kernels skip these (`DecoderOptions.skip_empty_groups`).
"""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.decoders.layers.chosen_products import product_of_chosen
from mansard.frontends.decoders.layers.writer import Matrix, Writer, add, cast, mul, shape_of
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Value

SMALLEST, LARGEST = 4, 64
"""Rows of a group."""
CACHED = 4 << 20
"""Elements of a matrix that a CPU still has in its caches when the next group of its expert comes: groups are
as small as can be then, with few places that no pair takes. With matrices of 3.1 million elements, groups of
4 rows take 0.83 to 0.96 of the time of those of 8 to 64 (Zen 4; bf16, int4, bytes times bytes), but 1.07 with
codes of 8 bits that are unpacked to floats for each group."""
WHOLE, APART, OTHERS = PARTS = "experts", "apart", "others"
"""Parts of a layer's experts: all of them, or where they are divided those apart and the others. Places of
ops end with these names."""
F32, I32, I64, BOOL = DType.F32, DType.I32, DType.I64, DType.BOOL


class ExpertGroups:
    """The groups of ``chosen`` (rows, experts of a row) i64, with numbers below ``count``.

    ``slots`` (pairs) i64 are the places of the pairs, below ``groups * size``. With ``partial``, a number may
    be -1, for an expert that is not among them; the pair's place is then -1.
    """

    def __init__(
        self,
        writer: Writer,
        chosen: Value,
        count: int,
        elements: int,
        *,
        part: str = WHOLE,
        partial: bool = False,
    ) -> None:
        """``elements`` are those of an expert's largest matrix, ``part`` is one of `PARTS`."""
        self.partial, self._skips_empty = partial, part in writer.skip_empty_groups
        self.writer, self.builder, self.count = writer, writer.builder, count
        self.rows, per_row = chosen.type.shape
        assert isinstance(per_row, int)
        self.per_row = per_row
        self.pairs = dims.mul(self.rows, per_row)
        self.size = SMALLEST if self._skips_empty and elements <= CACHED else self._size()
        self.groups = self._groups()
        self.chosen = self.builder.reshape(chosen, (self.pairs,))
        self._place()

    def _size(self) -> int:
        """A power of two near half of the rows that an expert usually has: few places stay empty then."""
        usual = max(1, dims.representative(self.pairs)) / self.count / 2
        size = SMALLEST
        while size < LARGEST and 2 * size <= usual:
            size *= 2
        return size

    def _groups(self) -> DimLike:
        """Groups that suffice for any choice: each expert has one that is not full, or each pair its own."""
        spread = dims.floordiv(dims.add(self.pairs, self.count * (self.size - 1)), self.size)
        return dims.minimum(self.pairs, spread)

    def _place(self) -> None:
        """Compute `slots`, the expert of each group, and the row at each place."""
        b = self.builder
        same = Apply("eq", (Arg(0, I64), Index(0)), BOOL)
        hits = b.generic(
            (self.chosen,),
            (IndexMap.of_dims((1,)),),
            (self.count, self.pairs),
            Cast(same, I32),
            name="hits",
        )
        earlier = b.scan(hits, 1, inclusive=False)
        counts = b.generic(
            (hits,),
            (IndexMap.identity(2),),
            (self.count, self.pairs),
            Arg(0, I32),
            reduced=1,
            combiner="add",
            name="counts",
        )
        groups = b.generic(
            (counts,), (IndexMap.identity(1),), (self.count,), self._rounded(Arg(0, I32)), name="groups"
        )
        ends = b.scan(groups, 0)
        self.slots = self._slots(ends, groups, earlier)
        self.experts = self._experts(ends)
        self.sources = self._sources()

    def _rounded(self, count: Scalar) -> Scalar:
        """Groups of so many rows."""
        shift = Const(self.size.bit_length() - 1, I32)
        return Apply("shr", (add(count, Const(self.size - 1, I32)), shift), I32)

    def _slots(self, ends: Value, groups: Value, earlier: Value) -> Value:
        """The first place of a pair's expert, plus the number of that expert's pairs before it."""
        number, none = Arg(0, I64), Const(0, I64)
        expert = Apply("max", (number, none), I64) if self.partial else number
        first = Apply("sub", (Gather(1, (expert,), I32), Gather(2, (expert,), I32)), I32)
        place = cast(add(mul(first, Const(self.size, I32)), Gather(3, (expert, Index(0)), I32)), I64)
        if self.partial:
            here = Apply("ge", (number, none), BOOL)
            place = Apply("select", (here, place, Const(-1, I64)), I64)
        return self.builder.generic(
            (self.chosen, ends, groups, earlier),
            (IndexMap.identity(1), None, None, None),
            (self.pairs,),
            place,
            name="slots",
        )

    def _experts(self, ends: Value) -> Value:
        """The expert of each group: as many as have ended before it. Groups behind the last, without rows,
        have none (-1), or where kernels do not skip them the last expert."""
        ended = Apply("le", (cast(Arg(0, I32), I64), Index(0)), BOOL)
        numbers = self.builder.generic(
            (ends,),
            (IndexMap.of_dims((1,)),),
            (self.groups, self.count),
            Cast(ended, I64),
            reduced=1,
            combiner="add",
            name="group_experts",
        )
        count, last, none = (Const(n, I64) for n in (self.count, self.count - 1, -1))

        def expert(ended: Scalar) -> Scalar:
            if not self._skips_empty:
                return Apply("min", (ended, last), I64)
            return Apply("select", (Apply("lt", (ended, count), BOOL), ended, none), I64)

        return self.writer.map([numbers], expert, "group_experts")

    def _sources(self) -> Value:
        """The row at each place; row 0 where there is none."""
        b = self.builder
        places = (dims.mul(self.groups, self.size),)
        nothing = b.generic((), (), places, Const(0, I64), name="no_rows")
        row = Apply("floordiv", (Index(0), Const(self.per_row, I64)), I64)
        rows = b.generic((), (), (self.pairs,), row, name="pair_rows")
        return b.scatter(nothing, b.reshape(self.slots, (self.pairs, 1)), rows, unique=True)

    def gathered(self, x: Value) -> Value:
        """The rows of ``x`` (rows, depth) in the order of the places, (places, depth)."""
        shape = (dims.mul(self.groups, self.size), x.type.shape[1])
        return self.builder.generic(
            (self.sources, x),
            (IndexMap.of_dims((0,)), None),
            shape,
            Gather(1, (Arg(0, I64), Index(1)), x.type.dtype),
            name="gathered",
        )

    def product(self, x: Value, stack: Matrix, name: str) -> Value:
        """Each place's row of ``x`` (places, K) times the matrix (N, K) of its expert in ``stack`` (experts,
        N, K): (places, N) in the model's type, summed in f32."""
        places, depth = x.type.shape
        columns = shape_of(stack)[1]
        grouped = self.builder.reshape(x, (self.groups, self.size, depth))
        extents = (self.groups, self.size, columns)
        factors = (grouped, (0, 1)), (self.experts, (0,))
        skips = self._skips_empty
        sums = product_of_chosen(self.writer, *factors, stack, extents, 2, partial=skips, name=name)
        return self.writer.cast(self.builder.reshape(sums, (places, columns)), self.writer.dtype)
