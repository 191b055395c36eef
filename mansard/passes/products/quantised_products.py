"""Compute products of dequantised values on their 8-bit integers.

A quantised model marks where values are 8-bit integers, and computes on the dequantised values. Before
(zero point 126 and a scale for the image, a scale for each output channel of the weights)::

    %a: 1x3x34x34xf32 = pad {(f32(%q[d0, d1, d2, d3]) - 126.0) * 0.027} value 0.0              %q: u8
    %b: 16x3x3x3xf32 = generic {f32(%w[d0, d1, d2, d3]) * %scales[d0]}                         %w: i8
    %y: 1x16x32x32xf32 = generic (d0:1, d1:16, d2:32, d3:32 | d4:3, d5:3, d6:3) add
                           {%a[d0, d4, d2 + d5, d3 + d6] * %b[d1, d4, d5, d6]}

After::

    %p: 1x3x34x34xu8 = pad %q value 126
    %t: 1x16x32x32xi32 = generic (…) add {i32(%p[d0, d4, d2 + d5, d3 + d6]) * i32(%w[d1, d4, d5, d6])}
    %s: 16xi32 = generic (d0:16 | d1:3, d2:3, d3:3) add {i32(%w[d0, d1, d2, d3])}
    %y: 1x16x32x32xf32 = generic (…) {f32(%t[…] - %s[d1] * 126) * (%scales[d1] * 0.027)}

The integers are summed exactly, so the result is closer to the exact one than a sum in f32, from which it
differs by that sum's rounding. The pass runs first: later ones would fold the dequantisation of constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mansard import dims
from mansard.analysis.operands import with_reads
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic, Op, Pad, Reshape
from mansard.ir.scalar import Apply, Arg, Bitcast, Cast, Const, Scalar
from mansard.ir.types import IndexMap, Linear, TensorType, Value

BYTES = {DType.I8: (-128, 127), DType.U8: (0, 255)}
F32, I32 = DType.F32, DType.I32
LARGEST_PRODUCT = 255 * 255
FEW = 1 << 16
"""Arrays of zero points are examined up to this many elements."""


@dataclass(frozen=True)
class _Scale:
    """A scale for every index of ``axis``; ``place`` is the axis of ``value`` with these scales."""

    value: Value
    place: int
    axis: int

    def read(self, dim: int) -> IndexMap:
        """The index map that reads the scale for iteration dim ``dim``."""
        axes = range(self.value.type.rank)
        return IndexMap(tuple(Linear.dim(dim) if a == self.place else Linear() for a in axes))


@dataclass(frozen=True)
class _Quantised:
    """A value as ``(value - zero) * factor * scales``, elementwise, with ``value`` in 8 bits."""

    value: Value
    constant: bool
    zero: int = 0
    factor: float = 1.0
    scales: tuple[_Scale, ...] = ()

    @property
    def scaled(self) -> bool:
        """Whether a scale was applied, after which no zero point can be added."""
        return self.factor != 1.0 or bool(self.scales)

    @property
    def zero_fits(self) -> bool:
        """Whether the 8-bit type can represent the zero point."""
        low, high = BYTES[self.value.type.dtype]
        return low <= self.zero <= high


def quantised_products(graph: Graph) -> Graph:
    """Compute products of two quantised factors on integers; the same graph if there are none."""
    return _Pass(graph).run()


class _Pass:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.producers = graph, graph.producers()
        self.taken = {v.name for v in graph.values()}
        self.forms: dict[Value, _Quantised] = {}
        self.constant = dict.fromkeys(graph.constants, True)
        self.ops: list[Op] = []
        self.rewritten = 0

    def run(self) -> Graph:
        for op in self.graph.ops:
            product = self._product(op) if isinstance(op, Generic) else None
            if product is not None:
                self.rewritten += 1
                continue
            self.ops.append(op)
            form = self._form(op)
            if form is not None:
                self.forms[op.output] = form
        return self.graph.with_ops(self.ops) if self.rewritten else self.graph

    def _add(self, op: Op, name: str, shape: Sequence[DimLike], dtype: DType) -> Value:
        """Append ``op`` with a new result."""
        value = Value(fresh_name(self.taken, name), TensorType(tuple(shape), dtype))
        self.ops.append(replace(op, outputs=(value,)))
        return value

    # Analysis of values -------------------------------------------------------------------------
    def _form(self, op: Op) -> _Quantised | None:
        """The quantised form of an op's result, derived from those of its operands."""
        if isinstance(op, Generic) and op.combiner is None:
            return self._elementwise(op)
        source = self.forms.get(op.inputs[0]) if len(op.inputs) == 1 else None
        if source is None or not isinstance(op, (Pad, Reshape)):
            return None
        if isinstance(op, Pad):
            if op.value != 0 or not source.zero_fits:
                return None
            return self._moved(
                source, replace(op, value=source.zero), {s.axis: s.axis for s in source.scales}
            )
        axes = _kept_axes(source.value.type.shape, op.output.type.shape)
        return self._moved(source, op, axes)

    def _moved(self, source: _Quantised, op: Op, axes: Mapping[int, int]) -> _Quantised | None:
        """Apply ``op``, which only moves elements, to the 8-bit elements; ``axes`` maps old axes to new
        ones."""
        if not all(scale.axis in axes for scale in source.scales):
            return None
        shape, dtype = op.output.type.shape, source.value.type.dtype
        value = self._add(replace(op, inputs=(source.value,)), f"{op.output.name}.q", shape, dtype)
        scales = tuple(replace(scale, axis=axes[scale.axis]) for scale in source.scales)
        return replace(source, value=value, scales=scales)

    def _elementwise(self, op: Generic) -> _Quantised | None:
        body = op.body
        if isinstance(body, Arg):
            return self._copy(op, body)
        return self._expression(op, body)

    def _expression(self, op: Generic, node: Scalar) -> _Quantised | None:
        """The quantised form of a part of an op's body, which may do all steps of it at once."""
        if isinstance(node, Arg):
            return self._operand(op, node)
        if isinstance(node, Cast):
            return self._widened(op, node)
        if not isinstance(node, Apply) or node.op not in ("add", "sub", "mul"):
            return None
        main, other = node.args
        source = self._expression(op, main)
        if source is None and node.op != "sub":
            main, other = other, main
            source = self._expression(op, main)
        if source is None:
            return None
        shifts = self._scaled if node.op == "mul" else self._shifted
        return shifts(op, node, source, other)

    def _operand(self, op: Generic, node: Scalar) -> _Quantised | None:
        """The quantised form of an operand that is read with the identity map."""
        if not isinstance(node, Arg) or op.maps[node.index] != IndexMap.identity(op.rank):
            return None
        return self.forms.get(op.inputs[node.index])

    def _copy(self, op: Generic, body: Arg) -> _Quantised | None:
        """Elements moved by an index map, such as a transpose."""
        source, index_map = self.forms.get(op.inputs[body.index]), op.maps[body.index]
        if source is None or index_map is None or index_map.fill is not None:
            return None
        axes = {a: r.single for a, r in enumerate(index_map.results) if r.single is not None}
        moved = replace(op, maps=(index_map,), body=Arg(0, source.value.type.dtype))
        return self._moved(source, moved, axes)

    def _widened(self, op: Generic, body: Cast) -> _Quantised | None:
        """An 8-bit value cast to a wider type, possibly through an unsigned one."""
        if not body.dtype.is_float and body.dtype not in (DType.I16, I32, DType.I64):
            return None
        if body.dtype.is_float and body.dtype is not F32:
            return None
        known = self._expression(op, body.arg)
        if known is not None:
            return known
        inner = body.arg.arg if isinstance(body.arg, Bitcast) else body.arg
        if not isinstance(inner, Arg) or inner.dtype not in BYTES or body.arg.dtype not in BYTES:
            return None
        if op.maps[inner.index] != IndexMap.identity(op.rank):
            return None
        value = op.inputs[inner.index]
        constant = self._is_constant(value)
        if body.arg.dtype is not inner.dtype:
            taken = replace(op, body=body.arg)
            value = self._add(taken, f"{value.name}.{body.arg.dtype.value}", value.type.shape, body.arg.dtype)
        return _Quantised(value, constant)

    def _shifted(self, op: Generic, node: Apply, source: _Quantised, other: Scalar) -> _Quantised | None:
        """A zero point, subtracted or added."""
        if source.scaled:
            return None
        while isinstance(other, Cast):
            other = other.arg
        if isinstance(other, Arg):
            return source if self._is_zero(op.inputs[other.index]) else None
        if not isinstance(other, Const) or float(other.value) != int(other.value):
            return None
        sign = 1 if node.op == "sub" else -1
        return replace(source, zero=source.zero + sign * int(other.value))

    def _scaled(self, op: Generic, node: Apply, source: _Quantised, other: Scalar) -> _Quantised | None:
        """A scale: a single one, or one for every index of an axis."""
        if node.dtype is not F32:
            return None
        if isinstance(other, Const):
            return replace(source, factor=source.factor * float(other.value))
        index_map = op.maps[other.index] if isinstance(other, Arg) else None
        if index_map is None or index_map.fill is not None or index_map.plain_dims is None:
            return None
        assert isinstance(other, Arg)
        walked = [(place, d) for place, d in enumerate(index_map.plain_dims) if d is not None]
        walked = [(place, d) for place, d in walked if not dims.is_one(op.extents[d])] or walked[:1]
        if len(walked) != 1:
            return None
        ((place, axis),) = walked
        return replace(source, scales=(*source.scales, _Scale(op.inputs[other.index], place, axis)))

    def _is_constant(self, value: Value) -> bool:
        """Whether a value is computed from constants alone, like weights that a model rounds at each call."""
        if value not in self.constant:
            op = self.producers.get(value)
            plain = op is not None and not op.has_effect
            self.constant[value] = plain and all(self._is_constant(v) for v in op.inputs)  # type: ignore[union-attr]
        return self.constant[value]

    def _is_zero(self, value: Value) -> bool:
        """Whether a value is computed from constants that are zero."""
        if value in self.graph.constants:
            elements = value.type.elements
            if not isinstance(elements, int) or elements > FEW:
                return False
            return not load(value, self.graph.constants[value]).any()
        op = self.producers.get(value)
        plain = isinstance(op, Reshape)
        if isinstance(op, Generic) and op.combiner is None and len(op.inputs) == 1:
            plain = isinstance(op.body.arg if isinstance(op.body, Cast) else op.body, Arg)
        return plain and op is not None and self._is_zero(op.inputs[0])

    # Products -----------------------------------------------------------------------------------
    def _product(self, op: Generic) -> Value | None:
        """Append the integer product and its dequantisation; None if it cannot be done."""
        body = op.body
        if not is_contraction(op) or not isinstance(body, Apply) or body.op != "mul" or body.dtype is not F32:
            return None
        if len(op.inputs) != 2 or not all(isinstance(arg, Arg) for arg in body.args):
            return None
        sides = [self.forms.get(value) for value in op.inputs]
        left, right = sides
        if left is None or right is None or (left.zero and right.zero):
            return None
        if any(m is None or m.fill is not None for m in op.maps):
            return None
        terms = dims.bounds(dims.product(op.extents[d] for d in op.reduced))[1]
        scales = self._placed_scales(op, (left, right))
        if terms * LARGEST_PRODUCT >= 2**31 or scales is None:
            return None
        shift, other = (left.zero, 1) if left.zero else (right.zero, 0)
        sums = self._sums(op, other) if shift else None
        if shift and sums is None:
            return None
        values = (left.value, right.value)
        factors = tuple(Cast(Arg(i, v.type.dtype), I32) for i, v in enumerate(values))
        product = with_reads(op, values, op.maps, Apply("mul", factors, I32))
        total = self._add(product, f"{op.output.name}.sum", op.output.type.shape, I32)
        self._finish(op, total, sums, shift, scales, left.factor * right.factor)
        return op.output

    def _placed_scales(self, op: Generic, sides: Sequence[_Quantised]) -> list[tuple[_Scale, int]] | None:
        """Each scale with its parallel dim; None if one varies along a reduced dim."""
        placed = []
        for side, index_map in zip(sides, op.maps, strict=True):
            assert index_map is not None
            for scale in side.scales:
                dim = index_map.results[scale.axis].single
                if dim is None or dim >= op.rank:
                    return None
                placed.append((scale, dim))
        return placed

    def _sums(self, op: Generic, side: int) -> tuple[Value, IndexMap] | None:
        """The sums of a constant factor over the reduced dims, and their index map in the result."""
        form, index_map = self.forms[op.inputs[side]], op.maps[side]
        walked = index_map.plain_dims if index_map is not None else None
        if not form.constant or walked is None:
            return None
        used = [d for d in walked if d is not None]
        if not set(op.reduced) <= set(used) or len(set(used)) != len(used):
            return None
        kept = sorted(used)
        parallel = [d for d in kept if d < op.rank]
        reads = IndexMap.of_dims([None if d is None else kept.index(d) for d in walked])
        extents = tuple(op.extents[d] for d in kept)
        body = Cast(Arg(0, form.value.type.dtype), I32)
        summed = replace(op, inputs=(form.value,), extents=extents, maps=(reads,), body=body)
        value = self._add(summed, f"{form.value.name}.sums", extents[: len(parallel)], I32)
        return value, IndexMap.of_dims(parallel)

    def _finish(
        self,
        op: Generic,
        total: Value,
        sums: tuple[Value, IndexMap] | None,
        shift: int,
        scales: Sequence[tuple[_Scale, int]],
        factor: float,
    ) -> None:
        """Append the op that computes the result from the sum of products."""
        inputs, maps = [total], [IndexMap.identity(op.rank)]
        whole: Scalar = Arg(0, I32)
        if sums is not None:
            inputs.append(sums[0])
            maps.append(sums[1])
            whole = Apply("sub", (whole, Apply("mul", (Arg(1, I32), Const(shift, I32)), I32)), I32)
        by: Scalar | None = None if factor == 1.0 else Const(factor, F32)
        for scale, dim in scales:
            inputs.append(scale.value)
            maps.append(scale.read(dim))
            read = Arg(len(inputs) - 1, F32)
            by = read if by is None else Apply("mul", (read, by), F32)
        real: Scalar = Cast(whole, F32)
        body = real if by is None else Apply("mul", (real, by), F32)
        extents = op.output.type.shape
        result = Generic(tuple(inputs), op.outputs, extents, tuple(maps), body, location=op.location)
        self.ops.append(result)


def _kept_axes(before: Sequence[DimLike], after: Sequence[DimLike]) -> dict[int, int]:
    """The axes that a reshape keeps, by their old index: with equal extent and as many elements before
    them."""
    places: dict[tuple[int, int], int] = {}
    for axis, (ahead, extent) in enumerate(_strides(after)):
        places.setdefault((ahead, extent), axis)
    return {axis: places[key] for axis, key in enumerate(_strides(before)) if key in places}


def _strides(shape: Sequence[DimLike]) -> list[tuple[int, int]]:
    """(elements before it, extent) of each axis; -1 where they are not static."""
    known = [d if isinstance(d, int) else -1 for d in shape]
    pairs = []
    for axis, extent in enumerate(known):
        ahead = known[:axis]
        pairs.append((-1 if -1 in ahead else math.prod(ahead), extent))
    return [(-2 - axis, -1) if -1 in pair else pair for axis, pair in enumerate(pairs)]
