"""Resized images as `Resize`: elements taken at fixed places along dims, or interpolated between two.

::

    %a = Gather %x, [0, 0, 1, 1, 2, 2] axis=1                  nearest along one dim
    %b = %c * [1, 0.75, ...] + %d * [0, 0.25, ...]             linear along one dim; %c and %d are gathered
    %y = Resize %x mode=linear coordinates=half_pixel          of both dims of an image

Weights are those of `Resize` up to the rounding of coordinates in f32, places are exactly its places.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mansard.dtypes import DType
from mansard.ir.types import Value
from mansard.regions.named.builder import Array, static
from mansard.regions.named.editor import Editor, sources
from mansard.regions.named.evaluate import nearest_places, resize_matrix
from mansard.regions.named.ops import Elementwise, Gather, NamedOp, Recode, Reshape, Resize
from mansard.regions.quantised.roundings import NARROW

COORDINATES = {
    "linear": ("half_pixel", "align_corners", "asymmetric"),
    "nearest": ("asymmetric", "half_pixel", "align_corners"),
}
"""Coordinates by mode, the first one that fits is taken: for whole factors several do."""
_EXACT = 2.0**-20
"""How far a weight may be from its own, for each element of the dim: coordinates are computed in f32."""


@dataclass(frozen=True)
class _Step:
    """One dim resized: a source as (outer, size, inner), in row-major order, to (outer, wanted, inner)."""

    source: Value
    mode: str
    outer: int
    size: int
    wanted: int
    inner: int
    coordinates: tuple[str, ...]
    ops: frozenset[NamedOp]


@dataclass(frozen=True)
class _Image:
    """Two neighbouring dims resized: a source as (N, H, W, C) to (N, *wanted, C)."""

    source: Value
    mode: str
    shape: tuple[int, int, int, int]
    wanted: tuple[int, int]
    coordinates: str
    ops: frozenset[NamedOp]


def fold_resizes(e: Editor) -> None:
    """One op for two neighbouring dims that are resized alike, and for a single dim that is interpolated.

    Elements repeated along a single dim stay a Gather: that is no image.
    """
    steps = {op.output: step for op in e.listed() if (step := _step(e, op)) is not None}
    done = set[Value]()
    for value in reversed(steps):
        step = steps[value]
        first = steps.get(step.source)
        image = None if first is None or value in done else _joined(e, first, step)
        if image is not None:
            done |= {value, step.source}
            _put(e, value, image)
    for value, step in steps.items():
        if value not in done and step.mode == "linear":
            shape = (step.outer, step.size, 1, step.inner)
            _put(
                e,
                value,
                _Image(step.source, step.mode, shape, (step.wanted, 1), step.coordinates[0], step.ops),
            )
    e.sweep()


# Dims ---------------------------------------------------------------------------------------
def _step(e: Editor, op: NamedOp) -> _Step | None:
    """An op as one dim resized, with the ops before it that belong to it."""
    if isinstance(op, Gather):
        return _nearest(e, op)
    return _linear(e, op) if isinstance(op, Elementwise) and op.op == "add" and op.clamp is None else None


def _nearest(e: Editor, op: Gather) -> _Step | None:
    x, indices = op.inputs
    dtype = op.output.type.dtype
    if not (dtype in NARROW or dtype is DType.F32) or indices not in e.constants or indices.type.rank != 1:
        return None
    shape, places = static(x.type.shape), e.array(indices)
    outer, size, inner = math.prod(shape[: op.axis]), shape[op.axis], math.prod(shape[op.axis + 1 :])
    fitting = tuple(
        c for c in COORDINATES["nearest"] if np.array_equal(nearest_places(c, size, len(places)), places)
    )
    source, views = _unreshaped(e, x)
    step = _Step(source, "nearest", outer, size, len(places), inner, fitting, frozenset({op, *views}))
    return step if fitting else None


def _linear(e: Editor, op: Elementwise) -> _Step | None:
    if op.output.type.dtype is not DType.F32:
        return None
    left, right = (_tap(e, value) for value in op.inputs)
    if left is None or right is None:
        return None
    (first, weights, ops), (second, others, more) = left, right
    if (first.source, first.outer, first.size, first.inner) != (
        second.source, second.outer, second.size, second.inner,
    ):  # fmt: skip
        return None
    rows = np.arange(len(weights))
    matrix = np.zeros((len(weights), first.size))
    np.add.at(matrix, (rows, first.places), weights)
    np.add.at(matrix, (rows, second.places), others)
    bound = _EXACT * first.size
    fitting = tuple(
        c
        for c in COORDINATES["linear"]
        if np.abs(resize_matrix(c, first.size, len(rows)) - matrix).max() <= bound
    )
    whole = frozenset({op, *ops, *more})
    step = _Step(first.source, "linear", first.outer, first.size, len(rows), first.inner, fitting, whole)
    return step if fitting else None


@dataclass(frozen=True)
class _Taken:
    """Elements of a source as (outer, size, inner) at places of its middle dim."""

    source: Value
    outer: int
    size: int
    inner: int
    places: Array


def _tap(e: Editor, value: Value) -> tuple[_Taken, Array, list[NamedOp]] | None:
    """Gathered elements times weights along the dim that they are gathered in."""
    product = e.producer(value)
    if not isinstance(product, Elementwise) or product.op != "mul" or len(product.inputs) != 2:
        return None
    x, weights = product.inputs if product.inputs[1] in e.constants else product.inputs[::-1]
    if weights not in e.constants or x.type.shape != product.output.type.shape or product.clamp is not None:
        return None
    ops: list[NamedOp] = [product]
    source = x
    while isinstance(op := e.producer(source), (Reshape, Recode)) and op.clamp is None:
        ops.append(op)
        source = op.inputs[0]
    if not isinstance(op, Gather) or op.inputs[1] not in e.constants or op.inputs[1].type.rank != 1:
        return None
    given = static(op.inputs[0].type.shape)
    places = e.array(op.inputs[1])
    outer, inner = math.prod(given[: op.axis]), math.prod(given[op.axis + 1 :])
    column = _column(e.array(weights), static(x.type.shape), outer, len(places))
    source, views = _unreshaped(e, op.inputs[0])
    taken = _Taken(source, outer, given[op.axis], inner, places)
    return None if column is None else (taken, column, [*ops, op, *views])


def _column(weights: Array, shape: tuple[int, ...], outer: int, count: int) -> Array | None:
    """Weights as one number for each of ``count`` places, which are the dim of a shape behind ``outer``."""
    long = [d for d, size in enumerate(weights.shape) if size != 1]
    if not long:
        return np.full(count, weights.reshape(-1)[0], np.float64)
    fits = len(long) == 1 and shape[long[0]] == count and math.prod(shape[: long[0]]) == outer
    return weights.reshape(-1).astype(np.float64) if fits else None


def _unreshaped(e: Editor, value: Value) -> tuple[Value, list[NamedOp]]:
    """The value whose elements a value has in another shape, and the reshapes between."""
    views: list[NamedOp] = []
    while isinstance(view := e.producer(value), Reshape) and view.clamp is None:
        if e.encodings.get(view.output) != e.encodings.get(view.inputs[0]):
            break
        views.append(view)
        value = view.inputs[0]
    return value, views


# Images -------------------------------------------------------------------------------------
def _joined(e: Editor, first: _Step, second: _Step) -> _Image | None:
    """Two dims resized one after the other, if they are neighbours and nothing else reads what is between."""
    common = [c for c in first.coordinates if c in second.coordinates]
    if not common or first.mode != second.mode or not _is_between(e, second.source, second.ops):
        return None
    ops = first.ops | second.ops
    if second.outer == first.outer * first.wanted and first.inner == second.size * second.inner:
        shape = (first.outer, first.size, second.size, second.inner)
        return _Image(first.source, first.mode, shape, (first.wanted, second.wanted), common[0], ops)
    if first.outer == second.outer * second.size and second.inner == first.wanted * first.inner:
        shape = (second.outer, second.size, first.size, first.inner)
        return _Image(first.source, first.mode, shape, (second.wanted, first.wanted), common[0], ops)
    return None


def _is_between(e: Editor, value: Value, ops: Iterable[NamedOp]) -> bool:
    """Whether a value is read by some ops alone."""
    return value not in e.outputs and all(reader in ops for reader in e.readers(value))


def _put(e: Editor, result: Value, image: _Image) -> None:
    """The op in place of the one that computed a result, between views."""
    x, (n, height, width, channels) = image.source, image.shape
    encoding = e.encodings.get(x)
    if encoding is not None and encoding.axis is not None:
        return
    e.sources = sources(image.ops)
    last = channels == 1  # the channels are a dim before those that are resized
    if last:
        channels = _channels_before(static(x.type.shape), height * width)
        n //= channels
    shape = (n, channels, height, width) if last else (n, height, width, channels)
    x = _seen(e, x, e.reshape(x, shape))
    if last:
        x = _seen(e, x, e.transpose(x, (0, 2, 3, 1)))
    resized = e.value(result.name, (n, *image.wanted, channels), result.type.dtype)
    if result in e.encodings:
        e.encodings[resized] = e.encodings[result]
    e.put(Resize((x,), resized, image.mode, image.coordinates, sources=e.sources))
    turned = _seen(e, resized, e.transpose(resized, (0, 3, 1, 2))) if last else resized
    e.put(Reshape((turned,), result, sources=e.sources))


def _seen(e: Editor, x: Value, view: Value) -> Value:
    """A view of x, with its encoding."""
    if x in e.encodings:
        e.encodings[view] = e.encodings[x]
    return view


def _channels_before(shape: tuple[int, ...], pixels: int) -> int:
    """The extent of the dim before those that have some number of elements together, or 1."""
    behind = [d for d in range(len(shape)) if math.prod(shape[d:]) == pixels and shape[d] != 1]
    before = [size for size in shape[: behind[0]] if size != 1] if behind else []
    return before[-1] if before else 1
