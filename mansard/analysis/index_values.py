"""Index tensors by their values, as far as constants and iteration indices tell them.

A number is known exactly, or up to one that all rows share: a position that the call gives. Both tell whether
two rows are different.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import Constant, IndexMap, Value

MAX_ROWS = 1 << 15
"""The most rows that are compared."""
MAX_READ = 1 << 20
"""The most elements of a constant that is read."""
_EXACT: Mapping[str, Callable[..., object]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge")},
    "and": operator.and_,
    "or": operator.or_,
}
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Numbers:
    """A number for each row; unless ``exact``, one that all rows share is to be added."""

    values: Integers
    exact: bool = True

    @property
    def shared(self) -> bool:
        """Whether all rows have the same."""
        return bool((self.values == self.values.flat[0]).all())


def rows_differ(
    op: Generic, rows: int, producers: Mapping[Value, Op], constants: Mapping[Value, Constant]
) -> bool:
    """Whether no two rows of the index tensor that ``op`` computes, (…, K) with ``rows`` before, are equal;
    False where that is not known."""
    extents = [e for e in op.extents if isinstance(e, int)]
    if rows > MAX_ROWS or not rows or len(extents) < len(op.extents):
        return False
    reader = _Reader(producers, constants)
    outer = [place.reshape(-1) for place in np.indices(extents[:-1], dtype=np.int64)]
    known = []
    for column in range(extents[-1]):
        numbers = reader.body(op, op.body, [*outer, np.full(rows, column, np.int64)])
        if numbers is not None:
            known.append(np.broadcast_to(numbers.values, rows))
    return bool(known) and len(np.unique(np.stack(known, axis=1), axis=0)) == rows


class _Reader:
    def __init__(self, producers: Mapping[Value, Op], constants: Mapping[Value, Constant]) -> None:
        self.producers, self.constants = producers, constants

    def body(self, op: Generic, node: Scalar, places: Sequence[Integers]) -> _Numbers | None:
        """A node of a body at some places of its op's dims; None where it is not known."""
        if isinstance(node, Index):
            return _Numbers(places[node.dim])
        if isinstance(node, Const) and not node.dtype.is_float:
            return _Numbers(np.full(len(places[0]), int(node.value), np.int64))
        if isinstance(node, Arg) and not node.dtype.is_float:
            reads = op.maps[node.index]
            return None if reads is None else self._read(op.inputs[node.index], reads, places)
        if isinstance(node, Gather) and not node.dtype.is_float:
            return self._gather(op, node, places)
        if not isinstance(node, Apply) or node.dtype.is_float:
            return None
        if node.op == "select":
            return self._select(op, node, places)
        args = [self.body(op, arg, places) for arg in node.args]
        a, b = args[0], args[-1]
        if a is None or b is None or node.op not in _EXACT:
            return None
        if node.op in ("add", "sub") or (a.exact and b.exact):
            values = np.asarray(_EXACT[node.op](a.values, b.values), np.int64)
            return _Numbers(values, a.exact and b.exact)
        return _shared(a) if a.shared and b.shared else None

    def _select(self, op: Generic, node: Apply, places: Sequence[Integers]) -> _Numbers | None:
        condition = self.body(op, node.args[0], places)
        if condition is None:
            return None
        if condition.exact and condition.shared:
            return self.body(op, node.args[1 if condition.values[0] else 2], places)
        a, b = (self.body(op, arg, places) for arg in node.args[1:])
        if a is None or b is None:
            return None
        if condition.exact and a.exact and b.exact:
            return _Numbers(np.where(condition.values != 0, a.values, b.values))
        return _shared(a) if condition.shared and a.shared and b.shared else None

    def _gather(self, op: Generic, node: Gather, places: Sequence[Integers]) -> _Numbers | None:
        value, at = op.inputs[node.operand], []
        for scalar, extent in zip(node.indices, value.type.shape, strict=True):
            place = self.body(op, scalar, places)
            if place is None or not place.exact or not isinstance(extent, int) or not extent:
                return None
            at.append(np.clip(place.values, 0, extent - 1))
        return self._element(value, at)

    def _read(self, value: Value, reads: IndexMap, places: Sequence[Integers]) -> _Numbers | None:
        shape = [e for e in value.type.shape if isinstance(e, int)]
        numbers = [c for r in reads.results for c in (r.offset, *(c for _, c in r.terms))]
        if len(shape) < value.type.rank or not all(isinstance(n, int) for n in numbers) or 0 in shape:
            return None
        at = []
        inside = np.full(len(places[0]), True)
        for result, extent in zip(reads.results, shape, strict=True):
            place = np.full(len(places[0]), result.offset, np.int64)
            for d, c in result.terms:
                place = place + np.int64(dims.bounds(c)[0]) * places[d]
            inside &= (place >= 0) & (place < extent)
            at.append(np.clip(place, 0, extent - 1))
        element = self._element(value, at)
        if element is None or inside.all():
            return element
        if reads.fill is None or not element.exact:
            return None
        return _Numbers(np.where(inside, element.values, int(reads.fill)))

    def _element(self, value: Value, at: Sequence[Integers]) -> _Numbers | None:
        """Elements of a value: of a constant, of a map, or of anything else if it is one element."""
        producer = self.producers.get(value)
        if isinstance(producer, Reshape):
            source = [dims.bounds(e)[0] for e in producer.inputs[0].type.shape]
            target = [dims.bounds(e)[0] for e in value.type.shape]
            flat = np.ravel_multi_index(tuple(at), target) if at else np.zeros(1, np.int64)
            return self._element(producer.inputs[0], [np.asarray(a) for a in np.unravel_index(flat, source)])
        if isinstance(producer, Generic) and producer.combiner is None and at:
            known = self.body(producer, producer.body, at)
            if known is not None:
                return known
        if value in self.constants and at:
            size = value.type.elements
            if isinstance(size, int) and size <= MAX_READ:
                return _Numbers(np.asarray(load(value, self.constants[value])[tuple(at)], np.int64))
        count = len(at[0]) if at else 1
        if all((place == place[0]).all() for place in at):
            return _Numbers(np.zeros(count, np.int64), exact=False)
        return None


def _shared(numbers: _Numbers) -> _Numbers:
    return _Numbers(np.zeros_like(numbers.values), exact=False)
