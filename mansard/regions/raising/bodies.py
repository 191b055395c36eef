"""Scalar bodies as elementwise ops: one for each scalar op, on operands aligned to the iteration dims."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard.analysis.affine import Affine
from mansard.dtypes import DType
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, Bitcast, Cast, Const, DimValue, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Linear, Value
from mansard.regions.named.builder import NamedBuilder, static
from mansard.regions.raising.gathers import gathered
from mansard.regions.raising.masks import Box, concatenated, padded
from mansard.regions.raising.refusal import NotRaised
from mansard.regions.raising.views import aligned


class BodyRaiser:
    """Raises scalars of one Generic over a box of its iteration space; results have the iteration dims as
    dims, extent 1 where they are equal along one."""

    def __init__(self, b: NamedBuilder, op: Generic, inputs: Sequence[Value], box: Box | None = None) -> None:
        self.b, self.op, self.inputs = b, op, tuple(inputs)
        self.space: Box = {d: (0, extent) for d, extent in enumerate(static(op.extents))}
        self.space |= box or {}
        self.extents = tuple(end - first for first, end in self.space.values())
        self.affine = Affine(op.extents, {d: (first, end - 1) for d, (first, end) in (box or {}).items()})
        self._origin = [Linear.dim(d, 1, first) for d, (first, _) in self.space.items()]
        # Entries hold their node: an id is only unique while the node lives.
        self._done: dict[int, tuple[Scalar, Value]] = {}

    def within(self, box: Box) -> BodyRaiser:
        """The same over a smaller box."""
        return BodyRaiser(self.b, self.op, self.inputs, {**self.space, **box})

    def raised(self, node: Scalar) -> Value:
        """The value of a scalar. Raises NotRaised."""
        if id(node) not in self._done:
            self._done[id(node)] = (node, self._raised(node))
        return self._done[id(node)][1]

    def _raised(self, node: Scalar) -> Value:
        b, rank = self.b, len(self.extents)
        match node:
            case Arg():
                index_map = self.op.maps[node.index]
                assert index_map is not None
                return self._read(self.inputs[node.index], index_map)
            case Const():
                return b.literal(node.value, node.dtype, rank)
            case Index():
                places = np.arange(*self.space[node.dim], dtype=np.int64)
                return b.constant(places.reshape([-1 if d == node.dim else 1 for d in range(rank)]))
            case DimValue(value=int(size)):
                return b.literal(size, DType.I64, rank)
            case Cast():
                return b.cast(self.raised(node.arg), node.dtype)
            case Bitcast():
                return b.elementwise("bitcast", self.raised(node.arg), dtype=node.dtype)
            case Gather():
                return self._gather(node)
            case Apply():
                return self._apply(node)
            case _:
                raise NotRaised("it depends on sizes of the call")

    def _read(self, source: Value, index_map: IndexMap) -> Value:
        return aligned(self.b, source, index_map.compose(self._origin), self.extents)

    def _apply(self, node: Apply) -> Value:
        if node.op == "select":
            moved = padded(self, node) or concatenated(self, node)
            if moved is not None:
                return moved
        return self.b.elementwise(node.op, *(self.raised(arg) for arg in node.args), dtype=node.dtype)

    def _gather(self, node: Gather) -> Value:
        source, reads = self.inputs[node.operand], []
        for index, size in zip(node.indices, static(source.type.shape), strict=True):
            form = self.affine.linear(index)
            low, high = self.affine.range(index)
            if form is not None and low >= 0 and high < size:
                reads.append(form)
        if len(reads) == source.type.rank:
            return self._read(source, IndexMap(tuple(reads)))
        return gathered(self.b, source, [self.raised(index) for index in node.indices], self.extents)
