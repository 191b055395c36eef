"""Products with matrices that tokens, or groups of them, choose out of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.decoders.layers.writer import Matrix, Writer, cast, mul
from mansard.ir.quantised_weight import QuantisedWeight, chosen_product
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Value

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL


def product_of_chosen(
    writer: Writer,
    x: tuple[Value, Sequence[int]],
    chosen: tuple[Value, Sequence[int]],
    stack: Matrix,
    extents: Sequence[DimLike],
    column: int,
    reduced: Sequence[DimLike] = (),
    *,
    partial: bool = False,
    name: str,
) -> Value:
    """The sums of ``x`` times rows of the matrices that are ``chosen`` out of a ``stack`` (count, N, K), f32.

    Args:
        writer: Appends the op.
        x: The other factor, whose last axis is K, and the dims at which its other axes are read.
        chosen: The numbers of the matrices, i64, and the dims at which they are read.
        stack: Floating point, or integers with scales.
        extents: The result's shape.
        column: The dim of it along N.
        reduced: Extents of dims behind it that are summed over too.
        partial: Whether a number may be -1: what is computed for it is zero.
        name: The result's.
    """
    rank = len(extents) + len(reduced)
    read = (x[0], IndexMap.of_dims((*x[1], rank))), (chosen[0], IndexMap.of_dims(chosen[1]))
    factor, number = cast(Arg(0, x[0].type.dtype), F32), Arg(1, I64)
    row: tuple[Scalar, ...] = (
        Apply("max", (number, Const(0, I64)), I64) if partial else number,
        Index(column),
    )
    here = Apply("ge", (number, Const(0, I64)), BOOL)

    def kept(product: Scalar) -> Scalar:
        return Apply("select", (here, product, Const(0.0, F32)), F32) if partial else product

    if isinstance(stack, QuantisedWeight):
        out = writer.builder.value(name, extents, F32)
        op = chosen_product(stack, read, factor, extents, reduced, row, out)
        return writer.builder.append(replace(op, body=kept(op.body)))
    matrix = Gather(2, (*row, Index(rank)), stack.type.dtype)
    return writer.builder.generic(
        (x[0], chosen[0], stack),
        (*(index_map for _, index_map in read), None),
        (*extents, *reduced, stack.type.shape[-1]),
        kept(mul(factor, cast(matrix, F32))),
        reduced=1 + len(reduced),
        combiner="add",
        name=name,
    )
