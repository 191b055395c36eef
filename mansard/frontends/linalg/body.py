"""A `Generic` under construction: its operands, extents and body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.linalg.scalars import Space
from mansard.frontends.linalg.values import Load, Splat, TensorEntry
from mansard.ir.scalar import Arg, Gather, Scalar, operands, rewrite
from mansard.ir.types import IndexMap, Linear, Value

if TYPE_CHECKING:
    from mansard.frontends.linalg.importer import Importer


def row_major(shape: Sequence[DimLike]) -> Linear:
    """The row-major position of an element as an affine function of its indices."""
    position = Linear()
    stride: DimLike = 1
    for i in reversed(range(len(shape))):
        position = Linear.dim(i, stride).plus(position)
        stride = dims.mul(stride, shape[i])
    return position


class Body:
    """Collects the operands and extents of a Generic under construction."""

    def __init__(self, importer: Importer, extents: Sequence[DimLike]) -> None:
        self.importer = importer
        self.space = Space(extents)
        self.operands: list[tuple[Value, IndexMap | None]] = []

    def operand(self, value: Value, index_map: IndexMap | None) -> int:
        """The number of an operand, which is added if it is new."""
        entry = (value, index_map)
        if entry not in self.operands:
            self.operands.append(entry)
        return self.operands.index(entry)

    def read(self, entry: TensorEntry, index_map: IndexMap) -> Scalar:
        """The element of a tensor at an index map."""
        if isinstance(entry, Splat):
            return entry.scalar
        value = self.importer.materialise(entry)
        return Arg(self.operand(value, index_map), value.type.dtype)

    def extract(self, entry: TensorEntry, indices: Sequence[Scalar]) -> Scalar:
        """The element at computed indices: by an index map if they are affine and in range, otherwise by a
        Gather."""
        if isinstance(entry, Splat):
            return entry.scalar
        value = self.importer.materialise(entry)
        linear = [self.space.linear(i) for i in indices]
        if all(
            x is not None and self.space.within(x, d) for x, d in zip(linear, value.type.shape, strict=True)
        ):
            return self.read(value, IndexMap(tuple(x for x in linear if x is not None)))
        casts = tuple(self.space.cast(i, DType.I64) for i in indices)
        return Gather(self.operand(value, None), casts, value.type.dtype)

    def finish(self, tree: Scalar, reduced: int = 0, combiner: str | None = None, name: str = "v") -> Value:
        """Append the Generic; operands that the body does not read are dropped."""
        tree = rewrite(tree, self._resolve)
        used = sorted(operands(tree))
        numbers = {old: new for new, old in enumerate(used)}
        tree = rewrite(tree, lambda node: _renumber(node, numbers))
        kept = [self.operands[i] for i in used]
        return self.importer.builder.generic(
            [v for v, _ in kept],
            [m for _, m in kept],
            self.space.extents,
            tree,
            reduced=reduced,
            combiner=combiner,
            name=name,
        )

    def _resolve(self, node: Scalar) -> Scalar:
        if isinstance(node, Load):
            return Arg(self.operand(node.value, IndexMap()), node.dtype)
        return node


def _renumber(node: Scalar, numbers: Mapping[int, int]) -> Scalar:
    if isinstance(node, Arg):
        return Arg(numbers[node.index], node.dtype)
    if isinstance(node, Gather):
        return Gather(numbers[node.operand], node.indices, node.dtype)
    return node
