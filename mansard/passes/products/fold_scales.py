"""Fold scales and shifts of a contraction's result (batch norm) into its weights and one addition.

Before (a convolution and its batch norm at inference; ``%mean``, ``%scale``, ``%beta`` are constants)::

    %c: 1x8x5x5xf32 = generic (...) add {%x[d0, d4, d2, d3] * %w[d1, d4]}
    %s: 1x8x5x5xf32 = generic (...) {%c[d0, d1, d2, d3] - %mean[d1]}
    %m: 1x8x5x5xf32 = generic (...) {%s[d0, d1, d2, d3] * %scale[d1]}
    %y: 1x8x5x5xf32 = generic (...) {%m[d0, d1, d2, d3] + %beta[d1]}

After (``%w_scaled = %w * %scale``, ``%shift = %beta - %mean * %scale``, computed when loaded)::

    %c_1: 1x8x5x5xf32 = generic (...) add {%x[d0, d4, d2, d3] * %w_scaled[d1, d4]}
    %y: 1x8x5x5xf32 = generic (...) {%c_1[d0, d1, d2, d3] + %shift[d1]}

Only for f32, and where the weight and the intermediate values have no other readers. Rounding differs from
before, by about as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Const, Scalar
from mansard.ir.types import Constant, IndexMap, Linear, TensorType, Value

Factor = Value | float
"""A constant with one element for each channel, or a number."""


@dataclass(frozen=True)
class _Step:
    """``x * factor``, ``x + factor`` or ``x - factor``."""

    kind: str
    factor: Factor


@dataclass(frozen=True)
class _Chain:
    """The ``ops`` after a contraction, which perform ``steps`` along dim ``channel``."""

    weight: int
    axis: int
    channel: int
    ops: list[Generic]
    steps: list[_Step]


def fold_scales(graph: Graph) -> Graph:
    """Fold every chain of scales and shifts with at least one scale; the same graph if there are none."""
    return _Folder(graph).run()


class _Folder:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.users, self.live = graph, graph.users(), graph.live_outs()
        self.constants = dict(graph.constants)
        self.taken = {v.name for v in graph.values()}

    def run(self) -> Graph:
        replaced: dict[Op, list[Op]] = {}
        for op in self.graph.ops:
            chain = self._chain(op) if isinstance(op, Generic) else None
            if chain is None:
                continue
            assert isinstance(op, Generic)
            replaced.update({old: [] for old in chain.ops})
            contraction, *rest = self._fold(op, chain)
            replaced[op] = [contraction]
            replaced[chain.ops[-1]] = rest
        if not replaced:
            return self.graph
        ops = [new for op in self.graph.ops for new in replaced.get(op, [op])]
        read = {v for op in ops for v in op.inputs} | set(self.graph.live_outs())
        kept = {v: c for v, c in self.constants.items() if v in read}
        return self.graph.with_ops(ops, constants=kept)

    # Recognising ------------------------------------------------------------------------------
    def _chain(self, op: Generic) -> _Chain | None:
        body = op.body
        if not is_contraction(op) or op.output.type.dtype is not DType.F32:
            return None
        if not (isinstance(body, Apply) and body.op == "mul" and all(isinstance(a, Arg) for a in body.args)):
            return None
        for i, value in enumerate(op.inputs):
            if value not in self.graph.constants or self.users[value] != [op] or value in self.live:
                continue
            if op.inputs.count(value) == 1 and value.type.dtype is DType.F32:
                for channel in range(op.rank):
                    axis = _axis(op, i, channel)
                    chain = self._follow(op, i, axis, channel) if axis is not None else None
                    if chain is not None:
                        return chain
        return None

    def _follow(self, op: Generic, weight: int, axis: int, channel: int) -> _Chain | None:
        ops: list[Generic] = []
        steps: list[_Step] = []
        last = op
        while last.output not in self.live and len(self.users[last.output]) == 1:
            (reader,) = self.users[last.output]
            step = self._step(reader, last.output, channel) if isinstance(reader, Generic) else None
            if step is None or not isinstance(reader, Generic):
                break
            ops.append(reader)
            steps.append(step)
            last = reader
        if not any(step.kind == "mul" for step in steps):
            return None
        return _Chain(weight, axis, channel, ops, steps)

    def _step(self, op: Generic, value: Value, channel: int) -> _Step | None:
        body = op.body
        if op.combiner is not None or not isinstance(body, Apply) or body.op not in ("add", "sub", "mul"):
            return None
        left, right = body.args
        if body.op != "sub" and not _reads(op, left, value):
            left, right = right, left
        if not _reads(op, left, value):
            return None
        factor = self._factor(op, right, channel)
        return _Step(body.op, factor) if factor is not None else None

    def _factor(self, op: Generic, node: Scalar, channel: int) -> Factor | None:
        if isinstance(node, Const):
            return float(node.value)
        if not isinstance(node, Arg):
            return None
        value, index_map = op.inputs[node.index], op.maps[node.index]
        if value not in self.graph.constants or index_map is None or value.type.dtype is not DType.F32:
            return None
        walked = [r for r in index_map.results if r.terms]
        extent = op.extents[channel]
        if len(walked) != 1 or walked[0].single != channel or value.type.elements != extent:
            return None
        return value

    # Folding ----------------------------------------------------------------------------------
    def _fold(self, op: Generic, chain: _Chain) -> list[Op]:
        weight = op.inputs[chain.weight]
        sources = {s.factor: self.constants[s.factor] for s in chain.steps if isinstance(s.factor, Value)}
        size = op.extents[chain.channel]
        assert isinstance(size, int)
        scaled = self._constant(
            weight, weight.type, _Scaled(weight, self.constants[weight], chain, sources, size)
        )
        inputs = tuple(scaled if v is weight else v for v in op.inputs)
        out = chain.ops[-1].output
        if all(step.kind == "mul" for step in chain.steps):
            return [replace(op, inputs=inputs, outputs=(out,))]
        shift = self._constant(out, TensorType((size,), DType.F32), _Shift(chain, sources, size))
        middle = Value(fresh_name(self.taken, op.output.name), op.output.type)
        identity, along = IndexMap.identity(op.rank), IndexMap((Linear.dim(chain.channel),))
        body = Apply("add", (Arg(0, DType.F32), Arg(1, DType.F32)), DType.F32)
        add = Generic(
            (middle, shift), (out,), op.extents[: op.rank], (identity, along), body, location=op.location
        )
        return [replace(op, inputs=inputs, outputs=(middle,)), add]

    def _constant(self, like: Value, type_: TensorType, data: _Scaled | _Shift) -> Value:
        value = Value(fresh_name(self.taken, like.name), type_)
        self.constants[value] = Constant(data.key, data)
        return value


def _axis(op: Generic, operand: int, channel: int) -> int | None:
    """The axis of a weight that a parallel dim indexes over its whole extent."""
    index_map = op.maps[operand]
    axes = [a for a, r in enumerate(index_map.results) if r.single == channel] if index_map else []
    whole = axes and op.inputs[operand].type.shape[axes[0]] == op.extents[channel]
    return axes[0] if whole and not dims.is_one(op.extents[channel]) else None


def _reads(op: Generic, node: Scalar, value: Value) -> bool:
    return (
        isinstance(node, Arg)
        and op.inputs[node.index] is value
        and op.maps[node.index] == IndexMap.identity(op.rank)
        and op.output.type.shape == value.type.shape
    )


def _affine(
    chain: _Chain, sources: Mapping[Value, Constant], size: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Scale and shift of a chain for each channel, in double precision."""
    scale, shift = np.ones(size), np.zeros(size)
    for step in chain.steps:
        factor: npt.NDArray[np.float64] | float
        if isinstance(step.factor, Value):
            factor = load(step.factor, sources[step.factor]).astype(np.float64).reshape(size)
        else:
            factor = step.factor
        if step.kind == "mul":
            scale, shift = scale * factor, shift * factor
        else:
            shift = shift + factor if step.kind == "add" else shift - factor
    return scale, shift


@dataclass(frozen=True)
class _Scaled:
    """Loads a weight times the scale of a chain."""

    weight: Value
    source: Constant
    chain: _Chain
    sources: Mapping[Value, Constant]
    size: int

    @property
    def key(self) -> str:
        return f"{self.source.key}.scaled({_names(self.chain, self.sources)})"

    def __call__(self) -> npt.NDArray[np.generic]:
        scale, _ = _affine(self.chain, self.sources, self.size)
        shape = [self.size if a == self.chain.axis else 1 for a in range(self.weight.type.rank)]
        return (load(self.weight, self.source) * scale.reshape(shape)).astype(np.float32)


@dataclass(frozen=True)
class _Shift:
    """Loads the shift of a chain."""

    chain: _Chain
    sources: Mapping[Value, Constant]
    size: int

    @property
    def key(self) -> str:
        return f"shift({_names(self.chain, self.sources)})"

    def __call__(self) -> npt.NDArray[np.generic]:
        return _affine(self.chain, self.sources, self.size)[1].astype(np.float32)


def _names(chain: _Chain, sources: Mapping[Value, Constant]) -> str:
    factors = (sources[s.factor].key if isinstance(s.factor, Value) else s.factor for s in chain.steps)
    return ", ".join(f"{s.kind} {f}" for s, f in zip(chain.steps, factors, strict=True))
