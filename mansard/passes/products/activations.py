"""What quantised weights are multiplied with: as it is, rounded to bf16, or to 8-bit integers by groups.

Integers have the form of `mansard.ir.rounded_rows`, over the groups of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir import rounded_rows
from mansard.ir.graph import fresh_name
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Apply, Arg, Cast, Scalar
from mansard.ir.types import IndexMap, Linear, TensorType, Value

F32, BF16, I8 = DType.F32, DType.BF16, DType.I8
LARGEST_GROUP = 1 << 16
"""Sums of so many products of two bytes fit 32 bits."""
FEW_ROWS = 4
"""GPUs multiply the bytes of so many rows at most; more are faster as floats, on matrix units."""
Operands = tuple[tuple[Value, IndexMap, int], ...]


class Activations:
    """Makes the first factor of products; a value with several readers is rounded once."""

    def __init__(self, taken: set[str], rounding: str | None, most_rows: int | None = None) -> None:
        """``most_rows``: values with more rows stay as they are; None: all are rounded."""
        self.taken, self.rounding, self.most_rows = taken, rounding, most_rows
        self.done: dict[tuple[Value, str, int], tuple[Value, ...]] = {}
        self.ops: list[Op] = []

    def operands(
        self, x: Value, index_map: IndexMap, rank: int, depth: int, group: int
    ) -> tuple[list[Op], Operands, Scalar]:
        """New ops, operands as `mansard.ir.quantised_weight.product` takes them, and the factor.

        ``depth`` is K as it is stored, where x may have fewer elements: it is padded with zeros. x is rounded
        to bytes only where K is its last axis.
        """
        self.ops = []
        last = index_map.results[-1].single == rank
        if last and x.type.shape[-1] != depth:
            (x,) = self._once(x, "padded", depth, lambda: self._padded(x, depth))
        if last and self._rounds(x, group):
            codes, scales = self._once(x, "int8", group, lambda: self._bytes(x, depth, group))
            factor = Apply("mul", (Cast(Arg(0, I8), F32), Arg(1, F32)), F32)
            return self.ops, ((codes, index_map, 1), (scales, index_map, group)), factor
        if self.rounding is not None and x.type.dtype is F32 and self._few(x):
            (x,) = self._once(x, "bf16", 0, lambda: self._brains(x))
        read: Scalar = Arg(0, x.type.dtype)
        return self.ops, ((x, index_map, 1),), read if x.type.dtype is F32 else Cast(read, F32)

    def codes_of(self, x: Value, group: int) -> tuple[list[Op], Value, Value] | None:
        """New ops, and x as bytes with a scale for each group of its last axis; None where it stays."""
        depth = x.type.shape[-1]
        if not self._rounds(x, group) or not isinstance(depth, int):
            return None
        self.ops = []
        codes, scales = self._once(x, "int8", group, lambda: self._bytes(x, depth, group))
        return self.ops, codes, scales

    def _rounds(self, x: Value, group: int) -> bool:
        return self.rounding == "int8" and group <= LARGEST_GROUP and self._few(x)

    def _few(self, x: Value) -> bool:
        """Whether x has so few rows that it is rounded."""
        return self.most_rows is None or dims.bounds(dims.product(x.type.shape[:-1]))[1] <= self.most_rows

    def _once(
        self, x: Value, kind: str, size: int, make: Callable[[], tuple[Value, ...]]
    ) -> tuple[Value, ...]:
        key = (x, kind, size)
        if key not in self.done:
            self.done[key] = make()
        return self.done[key]

    def _add(
        self, name: str, extents: Sequence[DimLike], reads: Sequence[tuple[Value, IndexMap]], body: Scalar,
        combiner: str | None = None,
    ) -> Value:  # fmt: skip
        shape = tuple(extents[:-1] if combiner else extents)
        out = Value(fresh_name(self.taken, name), TensorType(shape, body.dtype))
        inputs, maps = tuple(v for v, _ in reads), tuple(m for _, m in reads)
        self.ops.append(Generic(inputs, (out,), tuple(extents), maps, body, combiner))
        return out

    def _padded(self, x: Value, depth: int) -> tuple[Value, ...]:
        shape = (*x.type.shape[:-1], depth)
        beyond = IndexMap(IndexMap.identity(len(shape)).results, 0.0)
        return (self._add(f"{x.name}.padded", shape, [(x, beyond)], Arg(0, x.type.dtype)),)

    def _brains(self, x: Value) -> tuple[Value, ...]:
        read = IndexMap.identity(x.type.rank)
        return (self._add(f"{x.name}.bf16", x.type.shape, [(x, read)], Cast(Arg(0, F32), BF16)),)

    def _bytes(self, x: Value, depth: int, group: int) -> tuple[Value, ...]:
        """Codes of the shape of x, and a scale for each group."""
        lead = x.type.shape[:-1]
        few, extents = (*lead, depth // group), (*lead, depth // group, group)
        rank = len(few)
        inner = Linear(((rank - 1, group), (rank, 1)))
        read = (x, IndexMap((*(Linear.dim(d) for d in range(rank - 1)), inner)))
        own = IndexMap.identity(rank)
        number: Scalar = Arg(0, x.type.dtype)
        number = number if x.type.dtype is F32 else Cast(number, F32)
        largest = self._add(f"{x.name}.max", extents, [read], rounded_rows.magnitude(number), "max")
        scales = self._add(f"{x.name}.scales", few, [(largest, own)], rounded_rows.scale(Arg(0, F32)))
        code = rounded_rows.code(number, Arg(1, F32))
        codes = self._add(f"{x.name}.codes", extents, [read, (largest, own)], code)
        flat = Value(fresh_name(self.taken, f"{x.name}.codes"), TensorType(x.type.shape, I8))
        self.ops.append(Reshape((codes,), (flat,)))
        return flat, scales
