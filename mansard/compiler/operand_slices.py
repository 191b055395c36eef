"""Operands of which a dispatch reads one contiguous slice: its kernel is bound to the slice alone.

Before (step 5 of an unrolled loop)::

    dispatch map[64] (%x: 10x64xf32) -> (%y: 64xf32)
      %y = generic (d0:64) {exp(%x[5, d0])}

After, with byte 1280 as the offset of ``%x``, which steps differ in::

    dispatch map[64] (%x: 1x64xf32) -> (%y: 64xf32)
      %y = generic (d0:64) {exp(%x[0, d0])}

So the steps of a loop share one kernel, and a layer that reads its part of a large table is compiled like
any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard.analysis.loops import linearize
from mansard.analysis.operands import is_gathered, renamed
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.types import IndexMap, Linear, TensorType, Value


@dataclass(frozen=True)
class SlicedDispatch:
    """A dispatch as its kernel sees it: ``offsets`` are the bytes of its operands before what it reads."""

    dispatch: Dispatch
    offsets: tuple[int, ...]
    """One for each of the inputs, then of the outputs, in order."""


@dataclass(frozen=True)
class _Box:
    """The elements of a view at constant indices of its first ``dims`` dims."""

    start: int
    elements: int
    dims: int


def slice_operands(dispatch: Dispatch, alignment: int) -> SlicedDispatch:
    """The dispatch with every input of which it reads one slice replaced by that slice.

    A slice is what constant indices of the outermost dims leave of a static shape. It is bound from a
    multiple of ``alignment`` bytes on: where it begins between two, as a line of elements with those before
    it from there on. Inputs whose layout the kernel may choose, or whose memory it writes, stay as they are.
    """
    offsets = dict.fromkeys((*dispatch.inputs, *dispatch.outputs), 0)
    ops, inputs, fixed = dispatch.ops, [], dispatch.packable | dispatch.in_place
    constants = dispatch.constants
    for value in dispatch.inputs:
        sliced = None if value in fixed else _sliced(dispatch, ops, value, alignment)
        if sliced is None:
            inputs.append(value)
            continue
        ops, part, offsets[value] = sliced
        inputs.append(part)
        if value in constants:
            constants = constants - {value} | {part}
    if ops is not dispatch.ops:
        dispatch = replace(dispatch, ops=ops, inputs=tuple(inputs), constants=constants)
    return SlicedDispatch(dispatch, tuple(offsets.values()))


def _sliced(
    dispatch: Dispatch, ops: Sequence[Op], value: Value, alignment: int
) -> tuple[tuple[Op, ...], Value, int] | None:
    """Ops that read a slice of an input in its place, the slice, and the bytes before it; None where they
    read more than one."""
    if dispatch.parts or value.type.dtype.bits < 8:
        return None
    views = {value}
    for op in ops:
        if isinstance(op, Reshape) and op.inputs[0] in views:
            views.add(op.output)
    boxes: dict[Value, _Box] = {}
    for op in ops:
        for position, operand in enumerate(op.inputs):
            if operand not in views or isinstance(op, Reshape):
                continue
            box = _box(op, position)
            if box is None or boxes.setdefault(operand, box) != box:
                return None
    if len({(box.start, box.elements) for box in boxes.values()}) != 1 or views & {*dispatch.outputs}:
        return None
    box = next(iter(boxes.values()))
    size = value.type.dtype.itemsize
    before, rest = divmod(box.start * size % alignment, size)
    if box.elements == value.type.elements or rest:
        return None
    slices = {view: Value(view.name, _slice_type(view.type, box, before)) for view, box in boxes.items()}
    part, *others = slices.values()
    reshapes = [Reshape((part,), (other,)) for other in others]
    kept = [op for op in ops if not (isinstance(op, Reshape) and op.output in views)]
    offset = (box.start - before) * size
    return (*reshapes, *(_reading(op, slices, boxes, before) for op in kept)), part, offset


def _box(op: Op, position: int) -> _Box | None:
    """What an op reads of an operand, as far as constant indices of the outermost dims limit it."""
    shape = op.inputs[position].type.shape
    if not isinstance(op, Generic) or not all(isinstance(extent, int) and extent for extent in shape):
        return None
    index_map, extents = op.maps[position], [int(extent) for extent in shape if isinstance(extent, int)]
    if index_map is None or index_map.fill is not None or is_gathered(op, position):
        return None
    start = dims = 0
    for extent, result in zip(extents, index_map.results, strict=True):
        if extent > 1 and (result.terms or not isinstance(result.offset, int)):
            break
        dims += 1
        inner = math.prod(extents[dims:])
        start += inner * result.offset if extent > 1 and isinstance(result.offset, int) else 0
    return _Box(start, math.prod(extents[dims:]), dims)


def _slice_type(whole: TensorType, box: _Box, before: int) -> TensorType:
    if before:
        return TensorType((before + box.elements,), whole.dtype)
    return TensorType((*(1 for _ in range(box.dims)), *whole.shape[box.dims :]), whole.dtype)


def _reading(op: Op, slices: dict[Value, Value], boxes: dict[Value, _Box], before: int) -> Op:
    """The op with slices, which begin ``before`` elements early, in place of what they are slices of."""
    if not isinstance(op, Generic):
        return op
    reading = renamed(op, slices)
    if reading is op:
        return op
    maps = list(op.maps)
    for position, value in enumerate(op.inputs):
        index_map = maps[position]
        if value in slices and index_map is not None:
            results = [
                Linear(result.terms, 0) if place < boxes[value].dims else result
                for place, result in enumerate(index_map.results)
            ]
            if before:
                results = [linearize(results, value.type.shape).plus(Linear((), before))]
            maps[position] = IndexMap(tuple(results), index_map.fill)
    return replace(reading, maps=tuple(maps))
