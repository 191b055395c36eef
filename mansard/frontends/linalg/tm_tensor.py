"""``tm_tensor`` ops: scan, sort, top-k and scatter, which torch-mlir does not decompose."""

from __future__ import annotations

from typing import Any

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.linalg import mlir
from mansard.frontends.linalg.body import Body
from mansard.frontends.linalg.generic import RegionScalars
from mansard.frontends.linalg.importer import Handler, Importer
from mansard.frontends.linalg.reduction import match_reduction
from mansard.frontends.linalg.values import Out, shape_of
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, Cast, Const, Index, Scalar
from mansard.ir.types import IndexMap, Value


def _region(importer: Importer, op: Any, arguments: list[Scalar]) -> list[Scalar]:
    """The yielded scalars of an op's region, for the given block arguments."""
    block = op.regions[0].blocks[0]
    scalars = dict(zip(block.arguments, arguments, strict=True))
    return RegionScalars(importer, Body(importer, ()), scalars, Index).run(block)


def _argument_dtypes(op: Any) -> list[DType]:
    return [mlir.element_type(a.type) for a in op.regions[0].blocks[0].arguments]


def import_scan(importer: Importer, op: Any) -> None:
    """``tm_tensor.scan``: the prefix combination along one dim; the final accumulator is unsupported."""
    if next(iter(op.results[1].uses), None) is not None:
        raise importer.unsupported(op, "the final accumulator of a scan is not supported")
    dtypes = _argument_dtypes(op)
    trees = _region(importer, op, [Out(0, dtypes[0]), Arg(0, dtypes[1])])
    match = match_reduction(trees, 0)
    if match is None or not isinstance(match.body, Arg) or match.combiner not in ("add", "mul", "min", "max"):
        raise importer.unsupported(op, "a scan other than add, mul, min or max")
    axis = op.attributes["dimension"].value
    inclusive = bool(op.attributes["inclusive"].value)
    x = importer.value(op.operands[0])
    importer.bind(op, importer.builder.scan(x, axis, match.combiner, inclusive))


def import_sort(importer: Importer, op: Any) -> None:
    """``tm_tensor.sort`` of values, or of values with payloads (their indices)."""
    operands = list(op.operands)
    dtypes = _argument_dtypes(op)
    trees = _region(importer, op, [Arg(i, d) for i, d in enumerate(dtypes)])
    descending = _direction(trees[0])
    if descending is None:
        raise importer.unsupported(op, "a comparison other than an order of the first operand")
    axis = op.attributes["dimension"].value
    values, order = importer.builder.sort(importer.value(operands[0]), axis, descending)
    importer.bind(op, values, 0)
    for k in range(1, len(operands)):
        importer.bind(op, _payload_in_order(importer, importer.value(operands[k]), order, axis), k)


def _direction(tree: Scalar) -> bool | None:
    """True for descending, False for ascending order of the first operand, None for anything else."""
    negated = isinstance(tree, Apply) and tree.op == "not"
    if negated and isinstance(tree, Apply):
        tree = tree.args[0]
    if not (isinstance(tree, Apply) and tree.op in ("lt", "le", "gt", "ge")):
        return None
    sides = [a.index if isinstance(a, Arg) else -1 for a in tree.args]
    if sides not in ([0, 1], [1, 0]):
        return None
    larger_first = (tree.op in ("gt", "ge")) == (sides == [0, 1])
    return larger_first != negated


def _payload_in_order(importer: Importer, x: Value, order: Value, axis: int) -> Value:
    """``x`` in the sorted order; for an iota along the axis, the order itself."""
    producer = importer.builder.producers.get(x)
    if isinstance(producer, Generic) and not producer.inputs:
        body = producer.body
        if body == Index(axis):
            return order
        if isinstance(body, Cast) and body.arg == Index(axis):
            after = Body(importer, order.type.shape)
            position = after.read(order, IndexMap.identity(order.type.rank))
            return after.finish(after.space.cast(position, x.type.dtype))
    after = Body(importer, x.type.shape)
    position = after.read(order, IndexMap.identity(order.type.rank))
    indices: list[Scalar] = [position if i == axis else Index(i) for i in range(x.type.rank)]
    return after.finish(after.extract(x, indices))


def import_topk(importer: Importer, op: Any) -> None:
    """``tm_tensor.topk``: the first entries of a sort; the count is the result's size."""
    operands = list(op.operands)
    counts = list(op.attributes["operandSegmentSizes"])
    dtypes = _argument_dtypes(op)
    descending = _direction(_region(importer, op, [Arg(i, d) for i, d in enumerate(dtypes)])[0])
    axis = op.attributes["dimension"].value
    limit = shape_of(importer.tensor(operands[counts[0]]))[axis]
    if descending is None or not isinstance(limit, int):
        raise importer.unsupported(op, "a comparison other than an order, or a count that is not a constant")
    values, order = importer.builder.sort(importer.value(operands[0]), axis, descending, limit)
    if counts[0] > 1:
        order = _payload_in_order(importer, importer.value(operands[1]), order, axis)
    index_type = mlir.element_type(op.results[1].type)
    if index_type is not order.type.dtype:
        after = Body(importer, order.type.shape)
        position = after.read(order, IndexMap.identity(order.type.rank))
        order = after.finish(after.space.cast(position, index_type))
    importer.bind(op, values, 0)
    importer.bind(op, order, 1)


def import_scatter(importer: Importer, op: Any) -> None:
    """``tm_tensor.scatter``: rows of updates stored or combined at indices of the leading dims.

    A negative index counts from the end, as in PyTorch.
    """
    updates, indices, target = (importer.value(v) for v in op.operands)
    axes = [int(a) for a in op.attributes["dimension_map"]]
    rank = target.type.rank
    order = [*axes, *(i for i in range(rank) if i not in axes)]
    moved = _transposed(importer, target, order)
    rows, width = indices.type.shape[0], len(axes)
    updates = _as_rows(importer, op, updates, (rows, *moved.type.shape[width:]))
    body = Body(importer, (rows, width))
    index = body.space.cast(body.read(indices, IndexMap.identity(2)), DType.I64)
    wrapped = _wrapped(body, index, moved.type.shape[:width])
    combiner = _scatter_combiner(importer, op)
    result = importer.builder.scatter(moved, body.finish(wrapped), updates, combiner)
    back = [order.index(i) for i in range(rank)]
    importer.bind(op, _transposed(importer, result, back))


def _wrapped(body: Body, index: Scalar, sizes: tuple[DimLike, ...]) -> Scalar:
    from mansard.frontends.linalg.scalars import dim_scalar

    size = dim_scalar(sizes[-1])
    for column in reversed(range(len(sizes) - 1)):
        here = body.space.compare("eq", Index(1), Const(column, DType.I64))
        size = body.space.select(here, dim_scalar(sizes[column]), size)
    negative = body.space.compare("lt", index, Const(0, DType.I64))
    return body.space.select(negative, body.space.binary("add", index, size), index)


def _as_rows(importer: Importer, op: Any, updates: Value, shape: tuple[DimLike, ...]) -> Value:
    if dims.product(updates.type.shape) != dims.product(shape):
        raise importer.unsupported(op, "updates that cover a part of the trailing dims")
    return importer.builder.reshape(updates, shape)


def _transposed(importer: Importer, x: Value, order: list[int]) -> Value:
    """Dim ``i`` of the result is dim ``order[i]`` of ``x``."""
    if order == list(range(len(order))):
        return x
    body = Body(importer, [x.type.shape[i] for i in order])
    return body.finish(body.read(x, IndexMap.of_dims([order.index(i) for i in range(len(order))])))


def _scatter_combiner(importer: Importer, op: Any) -> str | None:
    dtypes = _argument_dtypes(op)
    trees = _region(importer, op, [Arg(0, dtypes[0]), Out(0, dtypes[1])])
    if isinstance(trees[0], Arg) and not isinstance(trees[0], Out):
        return None
    match = match_reduction(trees, 0)
    if match is None or not isinstance(match.body, Arg) or match.combiner not in ("add", "mul", "min", "max"):
        raise importer.unsupported(op, "a combination of updates other than add, mul, min or max")
    return match.combiner


HANDLERS: dict[str, Handler] = {
    "tm_tensor.scan": import_scan,
    "tm_tensor.scatter": import_scatter,
    "tm_tensor.sort": import_sort,
    "tm_tensor.topk": import_topk,
}
