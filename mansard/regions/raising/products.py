"""Sums of products: matrix products of any index maps, as batches of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, Cast, Scalar
from mansard.ir.types import Value
from mansard.regions.named.builder import NamedBuilder, static
from mansard.regions.raising.bodies import BodyRaiser
from mansard.regions.raising.refusal import NotRaised
from mansard.regions.raising.views import arranged


def factors(op: Generic) -> tuple[Scalar, Scalar] | None:
    """The two factors of a sum of products."""
    body = op.body
    if op.combiner != "add" or not isinstance(body, Apply) or body.op != "mul":
        return None
    a, b = body.args
    return a, b


def narrow(node: Scalar, dtype: DType) -> Scalar:
    """A factor of an integer sum before it is widened, where it is an 8- or 16-bit number."""
    widened = isinstance(node, Cast) and dtype.is_int and node.arg.dtype.is_int and node.arg.dtype.bits <= 16
    return node.arg if widened and isinstance(node, Cast) else node


def plain(op: Generic, node: Scalar) -> Arg | None:
    """A factor that is an operand's element, widened or not, read at an index map."""
    node = narrow(node, op.body.dtype)
    return node if isinstance(node, Arg) else None


@dataclass(frozen=True)
class _Roles:
    """The iteration dims of a product of a and b: of both and the result, of one and the result, summed."""

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    summed: tuple[int, ...]


def raise_product(b: NamedBuilder, op: Generic, inputs: Sequence[Value]) -> Value:
    """A sum of products over plain dims as a `MatMul`, whose sums are i32 for integer factors."""
    both = factors(op)
    assert both is not None
    raiser = BodyRaiser(b, op, inputs)
    first, second = (raiser.raised(narrow(factor, op.body.dtype)) for factor in both)
    if first in b.constants and second not in b.constants:
        first, second = second, first
    roles = _roles(op, first, second)
    extents = static(op.extents)
    a = _matrices(b, first, roles.batch, roles.rows, roles.summed, extents)
    c = _matrices(b, second, roles.batch, roles.summed, roles.columns, extents)
    result = b.matmul(a, c, op.body.dtype)
    labels = (*roles.batch, *roles.rows, *roles.columns)
    result = b.reshape(result, [extents[d] for d in labels])
    shape = extents[: op.rank]
    return b.broadcast(arranged(b, result, labels, range(op.rank)), shape)


def _roles(op: Generic, first: Value, second: Value) -> _Roles:
    of_first, of_second = (
        {d for d, extent in enumerate(static(value.type.shape)) if extent != 1} for value in (first, second)
    )
    parallel = range(op.rank)
    extents = static(op.extents)
    summed = [d for d in op.reduced if extents[d] != 1]
    alone = [d for d in summed if not (d in of_first and d in of_second)]
    if alone:
        raise NotRaised("it sums along a dim that one factor does not have")
    return _Roles(
        tuple(d for d in parallel if d in of_first and d in of_second),
        tuple(d for d in parallel if d in of_first and d not in of_second),
        tuple(d for d in parallel if d in of_second and d not in of_first),
        tuple(summed),
    )


def _matrices(
    b: NamedBuilder,
    x: Value,
    batch: Sequence[int],
    rows: Sequence[int],
    columns: Sequence[int],
    extents: Sequence[int],
) -> Value:
    """An aligned factor as (batch, rows, columns), or (rows, columns) without batch dims."""
    rest = [d for d in range(len(extents)) if d not in (*batch, *rows, *columns)]
    x = b.transpose(x, [*batch, *rows, *columns, *rest])
    sizes = [math.prod(extents[d] for d in dims) for dims in (batch, rows, columns)]
    return b.reshape(x, sizes if batch else sizes[1:])
