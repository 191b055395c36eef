"""The op set of the Graph IR."""

from __future__ import annotations

from dataclasses import dataclass, field

from mansard.dims import DimLike
from mansard.ir.scalar import Scalar
from mansard.ir.types import IndexMap, Location, Value


@dataclass(frozen=True, eq=False)
class Op:
    """Base of all ops: operands in ``inputs``, results in ``outputs``."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    location: Location = field(default_factory=Location, kw_only=True)

    @property
    def name(self) -> str:
        """The op's name in dumps and patterns."""
        return type(self).__name__.lower()

    @property
    def output(self) -> Value:
        """The only result."""
        (value,) = self.outputs
        return value


@dataclass(frozen=True, eq=False)
class Generic(Op):
    """Compute every element of one result by a scalar body over an iteration space.

    ``extents`` are the iteration dims: first the result's dims in order (so the result's shape is
    ``extents[:rank]``), then the reduced dims. ``maps[i]`` says which element of ``inputs[i]`` an
    iteration point reads; None for operands only read by `Gather`. With reduced dims the elements
    are combined by ``combiner`` starting from its neutral element: ``argmin`` and ``argmax`` (one
    reduced dim) give the first i64 index of the extreme (NaN counts as extreme). The body's dtype
    is the accumulator's; the result's dtype is the same (i64 for arg combiners).

    ``extents=(M, N, K), maps=((d0, d2), (d2, d1)), body=a*b, combiner=add`` is a matmul.
    """

    extents: tuple[DimLike, ...]
    maps: tuple[IndexMap | None, ...]
    body: Scalar
    combiner: str | None = None

    @property
    def rank(self) -> int:
        """Rank of the result: the number of parallel dims."""
        return self.output.type.rank

    @property
    def reduced(self) -> tuple[int, ...]:
        """Iteration dims that are reduced."""
        return tuple(range(self.rank, len(self.extents)))


@dataclass(frozen=True, eq=False)
class Reshape(Op):
    """The same elements in row-major order under another shape (the result's type)."""


@dataclass(frozen=True, eq=False)
class Slice(Op):
    """``out[i…] = in[offsets + i * strides]``; sizes are the result's shape. Strides are positive ints."""

    offsets: tuple[DimLike, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Concat(Op):
    """The inputs one after another along ``axis``."""

    axis: int


@dataclass(frozen=True, eq=False)
class Pad(Op):
    """``low`` elements before and ``high`` after along each dim, filled with ``value``."""

    low: tuple[DimLike, ...]
    high: tuple[DimLike, ...]
    value: float | int | bool


@dataclass(frozen=True, eq=False)
class Scatter(Op):
    """``inputs = (target, indices, updates)``: a copy of target with updates written or combined.

    ``indices`` is i64 of shape (N, K) and ``updates`` of shape (N, *target.shape[K:]): row ``n``
    goes to ``target[indices[n]]``. Rows are applied in order; ``combiner`` None overwrites, else is
    add, mul, min or max. Rows with an index outside the target are dropped.
    """

    combiner: str | None = None


@dataclass(frozen=True, eq=False)
class Sort(Op):
    """Stable sort of ``inputs[0]`` along ``axis``: outputs are values and i64 indices.

    ``limit`` keeps the first entries only (top-k); NaN sorts as largest.
    """

    axis: int
    descending: bool = False
    limit: int | None = None


@dataclass(frozen=True, eq=False)
class Scan(Op):
    """Running combination of ``inputs[0]`` along ``axis`` (cumsum for add): result of the same type."""

    axis: int
    combiner: str = "add"
    inclusive: bool = True


@dataclass(frozen=True, eq=False)
class Attention(Op):
    """Scaled dot-product attention, kept whole.

    ``inputs = (query, key, value[, mask])`` of shapes (B, Hq, Q, D), (B, Hk, S, D), (B, Hk, S, Dv);
    ``Hq`` is a multiple of ``Hk`` (grouped heads). ``mask`` broadcasts to (B, Hq, Q, S): bool (true
    keeps) or float (added to the scaled scores). ``causal`` keeps ``s <= q``. A row whose every
    position is masked out by a bool mask gives zeros, as PyTorch does.
    """

    scale: float
    causal: bool = False


@dataclass(frozen=True, eq=False)
class Assert(Op):
    """Check ``inputs[0]`` (a bool tensor): the call fails with ``message`` when any element is false."""

    message: str
