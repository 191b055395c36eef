"""The integer Graph of a canonical f32 Graph, with parameters for its points.

A point becomes integers behind its definition, readers get what they stand for. Before::

    %b: 1x8x6x6xf32 = generic (…) {max(%a[…] + %bias[d1], 0.0)}
    %y: 1x4x6x6xf32 = generic (d0:1, d1:4, d2:6, d3:6 | d4:8, d5:3, d6:3) add
                      {%b[d0, d4, d2 + d5 - 1, d3 + d6 - 1 else 0.0] * %w[d1, d4, d5, d6]}

After::

    %b.u8: 1x8x6x6xu8 = generic (…) {u8(min(max(round(%b[…] * 38.6) + 3.0, 0.0), 255.0))}
    %y.sum: 1x4x6x6xi32 = generic (…) add
                      {i32(%b.u8[d0, d4, d2 + d5 - 1, d3 + d6 - 1 else 3]) * i32(%w.i8[d1, d4, d5, d6])}
    %y: 1x4x6x6xf32 = generic (…) {f32(%y.sum[…] - %w.sums[d1] * 3) * (%w.scales[d1] * 0.0259)}

It is the form that `mansard.passes.products.quantised_products` makes of models that are quantised already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mansard import dims
from mansard.dtypes import DType
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Scalar, rewrite
from mansard.ir.types import Constant, IndexMap, TensorType, Value
from mansard.passes.canonical.dce import eliminate_dead
from mansard.quantisation.layers import NOTHING, Layer, Point, Selection, moves, parallel_axes
from mansard.quantisation.parameters import LIMITS, Array, Parameters, Weight

F32, I32, I64 = DType.F32, DType.I32, DType.I64


def integer_graph(
    graph: Graph,
    selection: Selection,
    parameters: Mapping[Point, Parameters],
    weights: Mapping[Layer, Weight],
    floats: Collection[Layer] = (),
) -> Graph:
    """The graph with the points in ``parameters`` as integers.

    Layers whose points all have parameters multiply integers; those in ``floats`` read what they read before.
    """
    return _Rewriter(graph, selection, parameters, weights, floats).run()


class _Rewriter:
    def __init__(
        self,
        graph: Graph,
        selection: Selection,
        parameters: Mapping[Point, Parameters],
        weights: Mapping[Layer, Weight],
        floats: Collection[Layer],
    ) -> None:
        self.graph, self.parameters, self.weights = graph, parameters, weights
        self.floats = floats
        self.layers = {layer.op: layer for layer in selection.layers}
        self.seen_by_all = {p.value for p in selection.others if p in parameters}
        self.taken = {v.name for v in graph.values()}
        self.constants = dict(graph.constants)
        self.codes: dict[Point, Value] = {}
        """Integers of a value, moved from a point's: by the value and whether they are symmetric."""
        self.origin: dict[Point, Point] = {}
        self.reals: dict[Value, Value] = {}
        self.margins: set[Value] = set()
        """Values with a margin below all numbers, which integers stand for in maximum pools only."""
        self.stored: dict[str, Value] = {}
        self.ops: list[Op] = []

    def run(self) -> Graph:
        for value in (*self.graph.inputs, *(s.before for s in self.graph.states)):
            self._quantise(value)
        for op in self.graph.ops:
            layer = self.layers.get(op)  # type: ignore[call-overload]
            if layer is not None and self._is_quantised(layer):
                self._product(layer)
            else:
                self._keep(op, whole=layer is not None)
            for value in op.outputs:
                self._quantise(value)
        rename = {v: self._real(v) for v in self.graph.outputs}
        states = tuple(replace(s, after=self._real(s.after)) for s in self.graph.states)
        outputs = tuple(rename[v] for v in self.graph.outputs)
        needed = {v for op in self.ops for v in op.inputs} | set(outputs) | {s.after for s in states}
        constants = {v: c for v, c in self.constants.items() if v in needed}
        rewritten = replace(
            self.graph, ops=tuple(self.ops), outputs=outputs, states=states, constants=constants
        )
        return eliminate_dead(rewritten)

    def _is_quantised(self, layer: Layer) -> bool:
        sides = [side for side, point in enumerate(layer.points) if point is not None]
        return layer not in self.floats and all(self._of(layer, side) is not None for side in sides)

    def _of(self, layer: Layer, side: int) -> Value | None:
        point = layer.points[side]
        assert point is not None
        return self.codes.get(Point(layer.op.inputs[side], point.symmetric))

    # Values -------------------------------------------------------------------------------------
    def _quantise(self, value: Value) -> None:
        """Append the integers of a value that is a point."""
        for symmetric in (False, True):
            point = Point(value, symmetric)
            how = self.parameters.get(point)
            if how is None:
                continue
            low, high = LIMITS[how.dtype]
            whole: Scalar = Apply("round", (_times(Arg(0, F32), how.inverse),), F32)
            if how.zero:
                whole = Apply("add", (whole, Const(float(how.zero), F32)), F32)
            whole = Apply("max", (whole, Const(float(low), F32)), F32)
            whole = Apply("min", (whole, Const(float(high), F32)), F32)
            self.codes[point] = self._map(value, f"{value.name}.{how.dtype.value}", Cast(whole, how.dtype))
            self.origin[point] = point

    def _seen(self, value: Value) -> Point | None:
        """The integers of a value that all its readers see, if it has any."""
        point = Point(value)
        seen = point in self.codes and self.origin[point].value in self.seen_by_all
        return point if seen and value not in self.margins else None

    def _real(self, value: Value) -> Value:
        """What a value's integers stand for, or the value itself if it has none that all readers see."""
        point = self._seen(value)
        if point is None:
            return value
        if value not in self.reals:
            body = _dequantised(Arg(0, self.codes[point].type.dtype), self.parameters[self.origin[point]])
            self.reals[value] = self._map(self.codes[point], f"{value.name}.real", body)
        return self.reals[value]

    def _map(self, x: Value, name: str, body: Scalar) -> Value:
        out = Value(fresh_name(self.taken, name), TensorType(x.type.shape, body.dtype))
        self.ops.append(Generic((x,), (out,), x.type.shape, (IndexMap.identity(x.type.rank),), body))
        return out

    def _keep(self, op: Op, *, whole: bool) -> None:
        """An op as it was: what moves elements reads them exactly, and moves their integers too."""
        if moves(op):
            self.ops.append(op)
            for symmetric in (False, True):
                source, target = Point(op.inputs[0], symmetric), Point(op.output, symmetric)
                if source in self.codes:
                    self.origin[target] = self.origin[source]
                    self.codes[target] = self._moved(op, self.codes[source], self.origin[source])
            return
        if not whole and isinstance(op, Generic) and not op.is_contraction:
            op = self._reading_codes(op)
        if not whole and any(self._seen(v) for v in op.inputs):
            op = replace(op, inputs=tuple(self._real(v) for v in op.inputs))
        self.ops.append(op)

    def _reading_codes(self, op: Generic) -> Generic:
        """An op that reads integers instead of what they stand for, which nothing has to store then."""
        inputs, maps = list(op.inputs), list(op.maps)
        forms: dict[int, Parameters] = {}
        for i, (value, index_map) in enumerate(zip(op.inputs, op.maps, strict=True)):
            point = self._seen(value)
            if point is not None and (index_map is None or index_map.fill in (None, 0.0)):
                forms[i] = how = self.parameters[self.origin[point]]
                inputs[i], maps[i] = self.codes[point], _filled(index_map, how.zero)

        def leaf(node: Scalar) -> Scalar:
            operand = (
                node.index if isinstance(node, Arg) else node.operand if isinstance(node, Gather) else -1
            )
            how = forms.get(operand)
            if how is None or not isinstance(node, (Arg, Gather)) or node.dtype is not F32:
                return node
            return _dequantised(replace(node, dtype=how.dtype), how)

        return replace(op, inputs=tuple(inputs), maps=tuple(maps), body=rewrite(op.body, leaf))

    def _moved(self, op: Op, codes: Value, origin: Point) -> Value:
        """Append ``op`` on the integers."""
        how = self.parameters[origin]
        type_ = TensorType(op.output.type.shape, how.dtype)
        out = Value(fresh_name(self.taken, f"{op.output.name}.{how.dtype.value}"), type_)
        if isinstance(op, Reshape):
            self.ops.append(replace(op, inputs=(codes,), outputs=(out,)))
            return out
        assert isinstance(op, Generic)

        def on_codes(node: Scalar) -> Scalar:
            if isinstance(node, (Arg, Gather)) and node.dtype is F32:
                return replace(node, dtype=how.dtype)
            if isinstance(node, Apply) and node.op == "select":
                return replace(node, dtype=how.dtype)
            if not isinstance(node, Const) or node.dtype is not F32:
                return node
            if node.value == NOTHING:
                self.margins.add(op.output)
                return Const(LIMITS[how.dtype][0], how.dtype)
            return Const(how.zero, how.dtype)

        maps = tuple(_filled(m, LIMITS[how.dtype][0]) for m in op.maps)
        body = rewrite(op.body, on_codes)
        self.ops.append(replace(op, inputs=(codes,), outputs=(out,), maps=maps, body=body))
        return out

    # Products -----------------------------------------------------------------------------------
    def _product(self, layer: Layer) -> None:
        """Append the product of integers, and what they stand for as the layer's f32 result."""
        op, values, maps = layer.op, [], []
        zeros, factor = [0, 0], 1.0
        for side, point in enumerate(layer.points):
            index_map = op.maps[side]
            assert index_map is not None
            if point is None:
                weight = self.weights[layer]
                values.append(self._constant(weight.key, weight.codes, DType.I8))
            else:
                how, codes = self.parameters[point], self._of(layer, side)
                assert codes is not None
                values.append(codes)
                zeros[side], factor = how.zero, factor * how.scale
                index_map = _filled(index_map, how.zero)
            maps.append(index_map)
        total_type = _accumulator(op, [v.type.dtype for v in values])
        factors = tuple(Cast(Arg(i, v.type.dtype), total_type) for i, v in enumerate(values))
        total = Value(
            fresh_name(self.taken, f"{op.output.name}.sum"), TensorType(op.output.type.shape, total_type)
        )
        body = Apply("mul", factors, total_type)
        self.ops.append(replace(op, inputs=tuple(values), outputs=(total,), maps=tuple(maps), body=body))
        self._finish(layer, total, zeros, factor)

    def _finish(self, layer: Layer, total: Value, zeros: Sequence[int], factor: float) -> None:
        """Append the op that computes a layer's result from the sums of products."""
        op, dtype = layer.op, total.type.dtype
        inputs, maps = [total], [IndexMap.identity(op.rank)]
        whole: Scalar = Arg(0, dtype)
        by: Scalar = Const(factor, F32)
        weight = self.weights.get(layer)
        if weight is not None:
            assert layer.weight is not None
            walked, index_map = parallel_axes(op, layer.weight), op.maps[layer.weight]
            assert walked is not None and index_map is not None
            axes = [a for a, parallel in enumerate(walked) if parallel]
            along = IndexMap(tuple(index_map.results[a] for a in axes))
            sizes = [weight.codes.shape[a] for a in axes]
            zero = zeros[1 - layer.weight]
            if zero:
                others = tuple(a for a in range(weight.codes.ndim) if a not in axes)
                sums = weight.codes.sum(axis=others, dtype=np.int32).reshape(sizes)
                inputs.append(self._constant(f"{weight.key}.sums", sums, I32))
                maps.append(along)
                shift: Scalar = Arg(1, I32)
                shift = shift if dtype is I32 else Cast(shift, dtype)
                shift = Apply("mul", (shift, Const(zero, dtype)), dtype)
                whole = Apply("sub", (whole, shift), dtype)
            inputs.append(self._constant(f"{weight.key}.scales", weight.scales.reshape(sizes), F32))
            maps.append(along)
            by = Apply("mul", (Arg(len(inputs) - 1, F32), by), F32)
        body: Scalar = Apply("mul", (Cast(whole, F32), by), F32)
        extents = op.output.type.shape
        self.ops.append(Generic(tuple(inputs), op.outputs, extents, tuple(maps), body, location=op.location))

    def _constant(self, key: str, data: Array, dtype: DType) -> Value:
        if key not in self.stored:
            value = Value(fresh_name(self.taken, key), TensorType(data.shape, dtype))
            self.stored[key] = value
            self.constants[value] = Constant.of(data.astype(dtype.numpy), key)
        return self.stored[key]


def _dequantised(codes: Scalar, how: Parameters) -> Scalar:
    body: Scalar = Cast(codes, F32)
    if how.zero:
        body = Apply("sub", (body, Const(float(how.zero), F32)), F32)
    return _times(body, how.scale)


def _times(x: Scalar, factor: float) -> Scalar:
    return Apply("mul", (x, Const(factor, F32)), F32)


def _filled(index_map: IndexMap | None, fill: int) -> IndexMap | None:
    return index_map if index_map is None or index_map.fill is None else replace(index_map, fill=fill)


def _accumulator(op: Generic, dtypes: Collection[DType]) -> DType:
    """The type in which products of integers are summed."""
    if DType.I16 not in dtypes:
        return I32
    terms = dims.bounds(dims.product(op.extents[d] for d in op.reduced))[1]
    return I32 if terms * (1 << 15) * (1 << 7) < 1 << 31 else I64
