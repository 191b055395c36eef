"""Slices, insertions and padding of the ``tensor`` dialect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.linalg import dimmath, mlir
from mansard.frontends.linalg.body import Body
from mansard.frontends.linalg.generic import RegionScalars
from mansard.frontends.linalg.importer import Handler, Importer
from mansard.frontends.linalg.scalars import Space, as_dim, dim_scalar, zero
from mansard.frontends.linalg.tensors import reshaped
from mansard.frontends.linalg.values import Elements, Empty, Entry, Splat, TensorEntry, shape_of
from mansard.ir.scalar import Const, Index, Scalar
from mansard.ir.types import IndexMap, Value


@dataclass(frozen=True)
class Window:
    """The position of a slice in its source: offsets may be scalars read at run time; sizes are dims."""

    offsets: tuple[Scalar, ...]
    sizes: tuple[DimLike, ...]
    strides: tuple[int, ...]

    def static_offsets(self) -> tuple[DimLike, ...] | None:
        """The offsets as dim expressions, or None when one is only known at run time."""
        offsets = [as_dim(o) for o in self.offsets]
        return None if any(o is None for o in offsets) else tuple(o for o in offsets if o is not None)


def _window(importer: Importer, op: Any, first: int) -> Window:
    """The window of an extract or insert whose sizes start at operand ``first``."""
    counts = list(op.attributes["operandSegmentSizes"])[-3:]
    operands = list(op.operands)[first:]
    lists = []
    for name, count in zip(("static_offsets", "static_sizes", "static_strides"), counts, strict=True):
        taken, operands = operands[:count], operands[count:]
        lists.append(importer.mixed(op, op.attributes[name], taken))
    strides = [as_dim(s) for s in lists[2]]
    if not all(isinstance(s, int) for s in strides):
        raise importer.unsupported(op, "a stride that is not a constant")
    return Window(
        tuple(lists[0]),
        tuple(importer.dim(s, op) for s in lists[1]),
        tuple(s for s in strides if isinstance(s, int)),
    )


def import_extract_slice(importer: Importer, op: Any) -> None:
    """``tensor.extract_slice``, with or without dropped unit dims."""
    source = importer.tensor(op.operands[0])
    window = _window(importer, op, 1)
    shape = _kept_shape(importer, op, window)
    if isinstance(source, (Splat, Empty)):
        importer.bind(op, reshaped(importer, source, shape))
        return
    sliced = slice_window(importer, importer.materialise(source), window)
    importer.bind(op, importer.builder.reshape(sliced, shape))


def slice_window(importer: Importer, source: Value, window: Window) -> Value:
    """The elements of a window; a Gather if an offset is only known at run time or a stride is negative."""
    offsets = window.static_offsets()
    if offsets is None or any(s < 1 for s in window.strides):
        body = Body(importer, window.sizes)
        indices = [
            body.space.binary("add", body.space.binary("mul", Index(i), Const(s, DType.I64)), o)
            for i, (o, s) in enumerate(zip(window.offsets, window.strides, strict=True))
        ]
        return body.finish(body.extract(source, indices), name="slice")
    whole = all(o == 0 for o in offsets) and window.sizes == source.type.shape
    if whole and all(s == 1 for s in window.strides):
        return source
    return importer.builder.slice(source, offsets, window.sizes, window.strides)


def _kept_shape(importer: Importer, op: Any, window: Window) -> tuple[DimLike, ...]:
    """The result's shape: the sizes without the unit dims that the result type drops."""
    static = mlir.tensor_shape(op.results[0].type)
    return drop_units(window.sizes, static)


def drop_units(sizes: Sequence[DimLike], static: Sequence[int | None]) -> tuple[DimLike, ...]:
    """The sizes that a rank-reduced type of static shape ``static`` keeps: only unit dims are dropped."""
    kept: list[DimLike] = []
    for i, size in enumerate(sizes):
        all_needed = len(sizes) - i == len(static) - len(kept)
        expected = static[len(kept)] if len(kept) < len(static) else 0
        fits = size == expected if isinstance(size, int) and expected is not None else size != 1
        if fits or all_needed:
            kept.append(size)
    return tuple(kept)


def import_insert_slice(importer: Importer, op: Any) -> None:
    """``tensor.insert_slice``: padding, a concatenation, or a select, whichever is simplest."""
    source, target = importer.tensor(op.operands[0]), importer.tensor(op.operands[1])
    window = _window(importer, op, 2)
    source = _as_tensor(reshaped(importer, source, window.sizes))
    offsets = window.static_offsets()
    shape = shape_of(target)
    unit = all(s == 1 for s in window.strides)
    if offsets is not None and unit:
        if all(o == 0 for o in offsets) and window.sizes == shape:
            importer.bind(op, source)
            return
        highs = [dimmath.sub(d, dims.add(o, n)) for d, o, n in zip(shape, offsets, window.sizes, strict=True)]
        inside = all(dims.bounds(x)[0] >= 0 for x in (*offsets, *highs))
        if isinstance(target, Splat) and isinstance(target.scalar, Const) and inside:
            value = importer.materialise(source)
            importer.bind(op, importer.builder.pad(value, offsets, highs, target.scalar.value))
            return
        axes = [i for i, (d, n) in enumerate(zip(shape, window.sizes, strict=True)) if d != n]
        if len(axes) == 1 and inside:
            importer.bind(op, _between(importer, source, target, axes[0], offsets[axes[0]], highs[axes[0]]))
            return
    importer.bind(op, _overlay(importer, source, target, window))


def _as_tensor(entry: Entry) -> TensorEntry:
    assert isinstance(entry, (Value, Splat, Empty, Elements))
    return entry


def _between(
    importer: Importer, source: TensorEntry, target: TensorEntry, axis: int, low: DimLike, high: DimLike
) -> Value:
    """The target's part before, the source, the target's part after, along one axis."""
    old, new = importer.materialise(target), importer.materialise(source)
    shape = old.type.shape
    parts = []
    for offset, size in ((0, low), (None, None), (dims.add(low, new.type.shape[axis]), high)):
        if offset is None or size is None:
            parts.append(new)
        elif size != 0:
            sizes = [size if i == axis else d for i, d in enumerate(shape)]
            starts = [offset if i == axis else 0 for i in range(len(shape))]
            parts.append(importer.builder.slice(old, starts, sizes, [1] * len(shape)))
    return importer.builder.concat(parts, axis) if len(parts) > 1 else parts[0]


def _overlay(importer: Importer, source: TensorEntry, target: TensorEntry, window: Window) -> Value:
    """For every element of the target: the source's element inside the window, otherwise its old value."""
    shape = shape_of(target)
    body = Body(importer, shape)
    space = body.space
    if isinstance(target, Empty):
        old: Scalar = zero(target.dtype)
    else:
        old = body.read(target, IndexMap.identity(len(shape)))
    covered: Scalar = Const(True, DType.BOOL)
    indices = []
    for i, (offset, size, stride) in enumerate(
        zip(window.offsets, window.sizes, window.strides, strict=True)
    ):
        start = space.cast(offset, DType.I64)
        distance = space.binary("sub", Index(i), start)
        index = space.binary("floordiv", distance, Const(stride, DType.I64))
        covered = space.binary("and", covered, space.compare("ge", distance, Const(0, DType.I64)))
        covered = space.binary("and", covered, space.compare("lt", index, dim_scalar(size)))
        if stride != 1:
            hit = space.binary("rem", distance, Const(stride, DType.I64))
            covered = space.binary("and", covered, space.compare("eq", hit, Const(0, DType.I64)))
        indices.append(index)
    return body.finish(space.select(covered, body.extract(source, indices), old))


def import_pad(importer: Importer, op: Any) -> None:
    """``tensor.pad``: constant padding; negative amounts crop; non-constant padding reads by index."""
    counts = list(op.attributes["operandSegmentSizes"])
    operands = list(op.operands)[1:]
    low = importer.mixed(op, op.attributes["static_low"], operands[: counts[1]])
    high = importer.mixed(op, op.attributes["static_high"], operands[counts[1] :])
    lows, highs = ([importer.dim(s, op) for s in side] for side in (low, high))
    source = importer.tensor(op.operands[0])
    shape = tuple(dims.add(lo, d, hi) for lo, d, hi in zip(lows, shape_of(source), highs, strict=True))
    body = Body(importer, shape)
    block = op.regions[0].blocks[0]
    scalars: dict[Any, Scalar] = {argument: Index(i) for i, argument in enumerate(block.arguments)}
    (tree,) = RegionScalars(importer, body, scalars, Index).run(block)
    if all(x == 0 for x in (*lows, *highs)):
        importer.bind(op, source)
    elif isinstance(tree, Const):
        importer.bind(op, _constant_pad(importer, importer.materialise(source), lows, highs, tree))
    else:
        window = Window(tuple(map(dim_scalar, lows)), shape_of(source), (1,) * len(shape))
        importer.bind(op, _pad_with(importer, source, tree, body, window))


def _constant_pad(
    importer: Importer, source: Value, lows: list[DimLike], highs: list[DimLike], value: Const
) -> Value:
    crop_low, crop_high = ([_cropped(x) for x in side] for side in (lows, highs))
    if any(x != 0 for x in (*crop_low, *crop_high)):
        sizes = [
            dimmath.sub(d, dims.add(lo, hi))
            for d, lo, hi in zip(source.type.shape, crop_low, crop_high, strict=True)
        ]
        source = importer.builder.slice(source, crop_low, sizes, [1] * len(sizes))
        lows = [dims.add(a, b) for a, b in zip(lows, crop_low, strict=True)]
        highs = [dims.add(a, b) for a, b in zip(highs, crop_high, strict=True)]
    if all(x == 0 for x in (*lows, *highs)):
        return source
    return importer.builder.pad(source, lows, highs, value.value)


def _cropped(amount: DimLike) -> DimLike:
    """The number of elements that a negative padding removes."""
    return dims.maximum(dims.mul(amount, -1), 0)


def _pad_with(importer: Importer, source: TensorEntry, tree: Scalar, body: Body, window: Window) -> Value:
    space: Space = body.space
    covered: Scalar = Const(True, DType.BOOL)
    indices = []
    for i, (offset, size) in enumerate(zip(window.offsets, window.sizes, strict=True)):
        index = space.binary("sub", Index(i), offset)
        covered = space.binary("and", covered, space.compare("ge", index, Const(0, DType.I64)))
        covered = space.binary("and", covered, space.compare("lt", index, dim_scalar(size)))
        indices.append(index)
    return body.finish(space.select(covered, body.extract(source, indices), tree))


HANDLERS: dict[str, Handler] = {
    "tensor.extract_slice": import_extract_slice,
    "tensor.insert_slice": import_insert_slice,
    "tensor.pad": import_pad,
}
