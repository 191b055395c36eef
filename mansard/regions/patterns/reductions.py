"""Reductions of transposed values: they combine what the views before them read."""

from __future__ import annotations

from dataclasses import replace

from mansard.regions.named.builder import static
from mansard.regions.named.editor import Editor, sources
from mansard.regions.named.ops import NamedOp, Reduce, Reshape, Transpose
from mansard.regions.patterns.views import order_of

_ORDERLESS = frozenset({"add", "mul", "min", "max", "and", "or", "mean"})


def reduce_before_views(e: Editor) -> None:
    """Put views of what a reduction leaves behind it: they move fewer elements there.

    A mean over the spatial dims of a channels-last image is then one of that image.
    """
    for op in e.listed():
        if isinstance(op, Reduce) and op.kind in _ORDERLESS:
            _exchange(e, op)
    e.sweep()


def _exchange(e: Editor, op: Reduce) -> None:
    views: list[NamedOp] = []
    value = op.inputs[0]
    while isinstance(view := e.producer(value), (Reshape, Transpose)) and view.clamp is None:
        if e.encodings.get(view.output) != e.encodings.get(view.inputs[0]):
            break
        views.append(view)
        value = view.inputs[0]
    order = order_of(value, views) if views else None
    if order is None:
        return
    shape, seen = static(value.type.shape), static(op.inputs[0].type.shape)
    dims = dict(zip([dim for dim, size in enumerate(seen) if size > 1], order, strict=True))
    axes = tuple(sorted(dims[axis] for axis in op.axes if axis in dims))
    kept = [dim for axis, dim in dims.items() if axis not in op.axes]
    if not axes or kept != sorted(kept):
        return
    extents = [1 if dim in axes else size for dim, size in enumerate(shape)]
    merged = sources((op, *views))
    result = e.value(op.output.name, extents, op.output.type.dtype)
    if op.output in e.encodings:
        e.encodings[result] = e.encodings[op.output]
    e.put(replace(op, inputs=(value,), output=result, axes=axes, sources=merged))
    e.put(Reshape((result,), op.output, sources=merged))
