"""``tensor`` dialect ops and constants: shapes, views, elements."""

from __future__ import annotations

from typing import Any

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.linalg import dimmath, mlir
from mansard.frontends.linalg.body import Body
from mansard.frontends.linalg.generic import RegionScalars, append_asserts, apply_map
from mansard.frontends.linalg.importer import Handler, Importer
from mansard.frontends.linalg.scalars import HOST, as_dim, dim_scalar
from mansard.frontends.linalg.values import Elements, Empty, Entry, Splat, TensorEntry, shape_of
from mansard.ir.scalar import Apply, Const, Index, Scalar
from mansard.ir.types import IndexMap, Value


def import_constant(importer: Importer, op: Any) -> None:
    """``arith.constant``: a literal, a splat, or a constant of the Graph."""
    if not mlir.is_tensor(op.results[0]):
        importer.bind(op, mlir.scalar_literal(op))
        return
    attribute = op.attributes["value"]
    data = mlir.dense_array(attribute, importer.blobs())
    if data.size == 1 or getattr(attribute, "is_splat", False):
        dtype = mlir.element_type(op.results[0].type)
        importer.bind(op, Splat(Const(data.flat[0].item() if data.size else 0, dtype), data.shape, dtype))
    else:
        importer.bind(op, importer.constant(data))


def import_empty(importer: Importer, op: Any) -> None:
    """``tensor.empty``: a shape."""
    importer.bind(op, Empty(result_shape(importer, op, op.operands), mlir.element_type(op.results[0].type)))


def result_shape(importer: Importer, op: Any, sizes: Any) -> tuple[DimLike, ...]:
    """The shape of the only result, with its dynamic sizes taken from operands."""
    scalars = importer.mixed(op, [mlir.DYNAMIC if d is None else d for d in _static(op)], sizes)
    return tuple(importer.dim(s, op) for s in scalars)


def _static(op: Any) -> tuple[int | None, ...]:
    return mlir.tensor_shape(op.results[0].type)


def import_splat(importer: Importer, op: Any) -> None:
    """``tensor.splat``: one scalar for all elements."""
    scalar = importer.scalar(op.operands[0])
    shape = result_shape(importer, op, list(op.operands)[1:])
    importer.bind(op, Splat(scalar, shape, scalar.dtype))


def import_fill(importer: Importer, op: Any) -> None:
    """``linalg.fill``: a splat of the destination's shape."""
    scalar = importer.scalar(op.operands[0])
    importer.bind(op, Splat(scalar, shape_of(importer.tensor(op.operands[1])), scalar.dtype))


def import_dim(importer: Importer, op: Any) -> None:
    """``tensor.dim``: a dim expression."""
    axis = importer.dim(importer.scalar(op.operands[1]), op)
    shape = shape_of(importer.tensor(op.operands[0]))
    if not (isinstance(axis, int) and 0 <= axis < len(shape)):
        raise importer.unsupported(op, f"axis {axis} of a tensor of rank {len(shape)}")
    importer.bind(op, dim_scalar(shape[axis]))


def reshaped(importer: Importer, entry: TensorEntry, shape: tuple[DimLike, ...]) -> Entry:
    """The same elements in another shape."""
    if isinstance(entry, Splat):
        return Splat(entry.scalar, shape, entry.dtype)
    if isinstance(entry, Empty):
        return Empty(shape, entry.dtype)
    if isinstance(entry, Elements):
        return Elements(entry.scalars, shape, entry.dtype)
    return importer.builder.reshape(entry, shape)


def import_cast(importer: Importer, op: Any) -> None:
    """``tensor.cast``: the same tensor; a size that only one side states holds for both."""
    entry = importer.tensor(op.operands[0])
    shape = tuple(
        d if static is None else importer.unify(d, static, op)
        for d, static in zip(shape_of(entry), _static(op), strict=True)
    )
    importer.bind(op, entry if shape == shape_of(entry) else reshaped(importer, entry, shape))


def import_expand(importer: Importer, op: Any) -> None:
    """``tensor.expand_shape``: a reshape that splits dims."""
    source = importer.tensor(op.operands[0])
    sizes = importer.mixed(op, op.attributes["static_output_shape"], list(op.operands)[1:])
    shape = [importer.dim(s, op) for s in sizes]
    for group, size in zip(op.attributes["reassociation"], shape_of(source), strict=True):
        _refine_group(shape, [int(i.value) for i in group], size)
    importer.bind(op, reshaped(importer, source, tuple(shape)))


def _refine_group(shape: list[DimLike], group: list[int], size: DimLike) -> None:
    """Derive the one dynamic size of a group from the source's size, which is the simpler expression."""
    dynamic = [i for i in group if not isinstance(shape[i], int)]
    if len(dynamic) == 1:
        rest = dims.product(shape[i] for i in group if i != dynamic[0])
        exact = dims.exact_div(size, rest)
        if exact is not None:
            shape[dynamic[0]] = exact


def import_collapse(importer: Importer, op: Any) -> None:
    """``tensor.collapse_shape``: a reshape that merges dims."""
    source = importer.tensor(op.operands[0])
    before = shape_of(source)
    groups = [[int(i.value) for i in group] for group in op.attributes["reassociation"]]
    shape = tuple(dims.product(before[i] for i in group) for group in groups)
    importer.bind(op, reshaped(importer, source, shape))


def import_reshape(importer: Importer, op: Any) -> None:
    """``tensor.reshape``: the new shape is a tensor, whose elements must be dim expressions."""
    source, wanted = importer.tensor(op.operands[0]), importer.tensor(op.operands[1])
    static = _static(op)
    if isinstance(wanted, Elements):
        scalars: tuple[Scalar, ...] = wanted.scalars
    elif isinstance(wanted, Splat):
        scalars = (wanted.scalar,) * len(static)
    else:
        raise importer.unsupported(op, "a shape that depends on the content of a tensor is not supported")
    shape = [
        importer.dim(s, op) if known is None else known for s, known in zip(scalars, static, strict=True)
    ]
    total = dims.product(shape_of(source))
    dynamic = [i for i, d in enumerate(shape) if not isinstance(d, int)]
    _refine_group(shape, list(range(len(shape))), total)
    if len(dynamic) == 1 and dims.product(shape) != total:
        rest = dims.product(d for i, d in enumerate(shape) if i != dynamic[0])
        shape[dynamic[0]] = dimmath.floordiv(total, rest)
    importer.bind(op, reshaped(importer, source, tuple(shape)))


def import_from_elements(importer: Importer, op: Any) -> None:
    """``tensor.from_elements``: kept as scalars until a tensor is needed."""
    static = _static(op)
    scalars = tuple(importer.scalar(v) for v in op.operands)
    shape = tuple(d for d in static if d is not None)
    dtype = mlir.element_type(op.results[0].type)
    if len(scalars) == 1:
        importer.bind(op, Splat(scalars[0], shape, dtype))
    else:
        importer.bind(op, Elements(scalars, shape, dtype))


def import_extract(importer: Importer, op: Any) -> None:
    """``tensor.extract`` on the host: a scalar read at run time, unless it is known at import."""
    entry = importer.tensor(op.operands[0])
    indices = [importer.scalar(v) for v in list(op.operands)[1:]]
    if isinstance(entry, Splat):
        importer.bind(op, entry.scalar)
        return
    if isinstance(entry, Elements) and all(isinstance(i, Const) for i in indices):
        position = 0
        for index, size in zip(indices, entry.shape, strict=True):
            position = position * int(str(size)) + int(index.value if isinstance(index, Const) else 0)
        importer.bind(op, entry.scalars[position])
        return
    body = Body(importer, ())
    element = body.finish(body.extract(entry, indices), name="element")
    importer.bind(op, importer.load(element))


def import_insert(importer: Importer, op: Any) -> None:
    """``tensor.insert``: one element replaced."""
    scalar, target = importer.scalar(op.operands[0]), importer.tensor(op.operands[1])
    indices = [importer.scalar(v) for v in list(op.operands)[2:]]
    shape = shape_of(target)
    if dims.product(shape) == 1:
        importer.bind(op, Splat(scalar, shape, scalar.dtype))
        return
    body = Body(importer, shape)
    old = body.read(target, IndexMap.identity(len(shape)))
    here: Scalar = Const(True, DType.BOOL)
    for axis, index in enumerate(indices):
        here = body.space.binary("and", here, body.space.compare("eq", Index(axis), index))
    importer.bind(op, body.finish(body.space.select(here, scalar, old)))


def import_generate(importer: Importer, op: Any) -> None:
    """``tensor.generate``: a Generic of its region."""
    shape = result_shape(importer, op, op.operands)
    body = Body(importer, shape)
    block = op.regions[0].blocks[0]
    scalars: dict[Any, Scalar] = {argument: Index(i) for i, argument in enumerate(block.arguments)}
    region = RegionScalars(importer, body, scalars, Index)
    (tree,) = region.run(block)
    append_asserts(importer, op, body, region.requirements)
    importer.bind(op, body.finish(tree))


def import_concat(importer: Importer, op: Any) -> None:
    """``tensor.concat``."""
    parts = [importer.value(v) for v in op.operands]
    axis = op.attributes["dim"].value
    parts = [p for p in parts if p.type.shape[axis] != 0] or parts[:1]
    shape = list(parts[0].type.shape)
    for part in parts[1:]:
        shape = [
            d if i == axis else importer.unify(d, size, op)
            for i, (d, size) in enumerate(zip(shape, part.type.shape, strict=True))
        ]
    fixed = [_with_other_dims(importer, p, shape, axis) for p in parts]
    importer.bind(op, fixed[0] if len(fixed) == 1 else importer.builder.concat(fixed, axis))


def _with_other_dims(importer: Importer, part: Value, shape: list[DimLike], axis: int) -> Value:
    wanted = [part.type.shape[i] if i == axis else d for i, d in enumerate(shape)]
    return importer.builder.reshape(part, wanted)


def import_affine(importer: Importer, op: Any) -> None:
    """``affine.apply``, ``affine.min`` and ``affine.max`` on the host."""
    importer.bind(op, apply_map(HOST, op, [importer.scalar(v) for v in op.operands]))


def import_assert(importer: Importer, op: Any) -> None:
    """``cf.assert`` on the host: dropped when true, an import error when false, else an Assert."""
    condition = importer.scalar(op.operands[0])
    message = op.attributes["msg"].value
    if isinstance(condition, Const):
        if not condition.value:
            where = mlir.location_text(op.location) or "an unknown location"
            raise ImportModelError(f"the model always fails at {where}: {message}")
        return
    sizes = _compared_sizes(condition)
    if sizes is not None:
        importer.unify(*sizes, op)
    importer.builder.assert_true(importer.elementwise(condition, (), name="check"), message)


def _compared_sizes(condition: Scalar) -> tuple[DimLike, DimLike] | None:
    if not (isinstance(condition, Apply) and condition.op == "eq"):
        return None
    a, b = (as_dim(x) for x in condition.args)
    return None if a is None or b is None else (a, b)


HANDLERS: dict[str, Handler] = {
    "affine.apply": import_affine,
    "affine.max": import_affine,
    "affine.min": import_affine,
    "arith.constant": import_constant,
    "cf.assert": import_assert,
    "linalg.fill": import_fill,
    "tensor.cast": import_cast,
    "tensor.collapse_shape": import_collapse,
    "tensor.concat": import_concat,
    "tensor.dim": import_dim,
    "tensor.empty": import_empty,
    "tensor.expand_shape": import_expand,
    "tensor.extract": import_extract,
    "tensor.from_elements": import_from_elements,
    "tensor.generate": import_generate,
    "tensor.insert": import_insert,
    "tensor.reshape": import_reshape,
    "tensor.splat": import_splat,
}
