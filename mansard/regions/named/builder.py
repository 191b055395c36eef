"""Builds a NamedGraph op by op. Ops of constants are computed at once, equal ops are one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType, from_numpy
from mansard.ir.graph import fresh_name
from mansard.ir.ops import Op
from mansard.ir.types import Constant, TensorType, Value
from mansard.regions.named.evaluate import evaluate_op
from mansard.regions.named.ops import (
    Broadcast,
    Concat,
    Conv,
    Elementwise,
    Gather,
    MatMul,
    NamedOp,
    Pad,
    Pool,
    Reduce,
    Reshape,
    Slice,
    Transpose,
)

FOLDED = 1 << 24
"""Elements up to which the result of ops of constants is computed here; views of constants always are."""
VIEWS = (Transpose, Reshape, Slice)
"""Ops that only address elements otherwise."""
Array = npt.NDArray[Any]


def static(shape: Sequence[object]) -> tuple[int, ...]:
    """A shape whose extents are known to be ints."""
    assert all(isinstance(extent, int) for extent in shape), shape
    return tuple(int(str(extent)) for extent in shape)


class NamedBuilder:
    """Appends ops; each method returns the value of its result, an operand where there is nothing to do."""

    def __init__(self, names: set[str], constants: Mapping[Value, Constant]) -> None:
        self._ops: dict[Value, NamedOp] = {}
        self.constants: dict[Value, Constant] = dict(constants)
        self.sources: frozenset[Op] = frozenset()
        """The ops of the Graph that are being raised."""
        self._names, self._counts = names, dict[str, int]()
        self._known: dict[object, Value] = {}
        self._keys: dict[Value, object] = {}
        """What `_known` has a value for."""
        self._shared: dict[tuple[object, ...], Value] = {}
        self._unreshaped: dict[Value, Value] = {}
        """What reshapes have reshaped."""
        self._readers: dict[Value, frozenset[Op]] = {}

    # Values ---------------------------------------------------------------------------------
    def value(self, name: str, shape: Sequence[int], dtype: DType) -> Value:
        """A value with a name of its own."""
        count = self._counts[name] = self._counts.get(name, -1) + 1
        unique = fresh_name(self._names, f"{name}_{count}" if count else name)
        return Value(unique, TensorType(tuple(shape), dtype))

    def constant(self, array: Array, name: str = "const") -> Value:
        """A constant; one value for equal ones."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        if key not in self._shared:
            value = self.value(name, array.shape, from_numpy(array.dtype))
            self.constants[value] = Constant.of(array, value.name)
            self._shared[key] = value
        return self._shared[key]

    def literal(self, value: float | int | bool, dtype: DType, rank: int) -> Value:
        """A constant of one element, of a rank."""
        return self.constant(np.full((1,) * rank, value).astype(dtype.numpy))

    def array(self, value: Value) -> Array:
        """The data of a constant."""
        return np.asarray(self.constants[value].load())

    def scalar(self, value: Value) -> float | int | None:
        """The element that all of a constant are, if it is one and they are."""
        if value not in self.constants:
            return None
        array = self.array(value)
        if array.size == 0 or not (array == array.flat[0]).all():
            return None
        element: float | int = array.flat[0].item()
        return element

    # Ops ------------------------------------------------------------------------------------
    def append(
        self,
        kind: type[NamedOp],
        inputs: Sequence[Value],
        shape: Sequence[int],
        dtype: DType,
        *attributes: Any,
        name: str = "named",
    ) -> Value:
        """An op of a kind with attributes in the order of its fields."""
        # Views are shared by all that read them, others by the bodies they are from: what is computed for
        # different ops of the Graph may run in different regions.
        view = issubclass(kind, VIEWS)
        key = (kind, tuple(inputs), tuple(shape), dtype, attributes, frozenset() if view else self.sources)
        if (known := self._known.get(key)) is not None:
            self._readers[known] = self._readers.get(known, frozenset()) | self.sources
            return known
        output = self.value(name, shape, dtype)
        if kind is Reshape:
            self._unreshaped[output] = inputs[0]
        op = kind(tuple(inputs), output, *attributes, sources=self.sources)
        if not self._fold(op):
            self.put(op)
        self._known[key], self._keys[output] = output, key
        return output

    def put(self, op: NamedOp) -> None:
        """An op behind the others."""
        self._ops[op.output] = op

    def mark(self) -> int:
        """How many ops there are."""
        return len(self._ops)

    def undo(self, mark: int) -> None:
        """Take back the ops behind a mark."""
        for op in self._behind(mark):
            del self._ops[op.output]
            self._known.pop(self._keys.get(op.output), None)

    def _behind(self, mark: int) -> list[NamedOp]:
        return [self._ops[value] for value in islice(reversed(self._ops), len(self._ops) - mark)]

    def called(self, result: Value, value: Value, mark: int) -> Value:
        """A result of ops behind a mark under another value, if it is one that nothing reads yet."""
        added = self._behind(mark)
        if all(op.output is not result for op in added) or any(result in op.inputs for op in added):
            return result
        self._ops[value] = replace(self._ops.pop(result), output=value)
        self._known[self._keys[result]] = value
        self._keys[value] = self._keys.pop(result)
        if result in self._unreshaped:
            self._unreshaped[value] = self._unreshaped.pop(result)
        return value

    def ops(self) -> list[NamedOp]:
        """The ops in order."""
        return [
            replace(op, sources=op.sources | self._readers[op.output]) if op.output in self._readers else op
            for op in self._ops.values()
        ]

    def _fold(self, op: NamedOp) -> bool:
        """Make a constant of an op of constants."""
        if any(value not in self.constants for value in op.inputs):
            return False
        if not isinstance(op, VIEWS) and math.prod(static(op.output.type.shape)) > FOLDED:
            return False
        loads = [self.constants[value].load for value in op.inputs]
        keys = ", ".join(self.constants[value].key for value in op.inputs)
        key = f"{op.name}({keys})"
        if isinstance(op, VIEWS):
            self.constants[op.output] = Constant(key, lambda: evaluate_op(op, [f() for f in loads], {}))
        else:
            self.constants[op.output] = Constant.of(evaluate_op(op, [f() for f in loads], {}), key)
        return True

    def elementwise(self, op: str, *inputs: Value, dtype: DType | None = None) -> Value:
        """A scalar op on values that broadcast; of type ``dtype``, else that of the last operand."""
        shape = np.broadcast_shapes(*(static(value.type.shape) for value in inputs))
        return self.append(Elementwise, inputs, shape, dtype or inputs[-1].type.dtype, op)

    def cast(self, x: Value, dtype: DType) -> Value:
        """Another element type."""
        return x if x.type.dtype is dtype else self.elementwise("cast", x, dtype=dtype)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The same elements in another shape."""
        x = self._unreshaped.get(x, x)
        return x if tuple(shape) == x.type.shape else self.append(Reshape, (x,), shape, x.type.dtype)

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        """Dims in another order; a reshape where those of more than one element stay in order."""
        shape = static(x.type.shape)
        permuted = [shape[d] for d in permutation]
        long = [d for d in permutation if shape[d] != 1]
        if long == sorted(long):
            return self.reshape(x, permuted)
        return self.append(Transpose, (x,), permuted, x.type.dtype, tuple(permutation))

    def slice(
        self, x: Value, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int] | None = None
    ) -> Value:
        """Parts of dims."""
        steps = tuple(strides or (1,) * len(sizes))
        if tuple(sizes) == x.type.shape:
            return x
        return self.append(Slice, (x,), sizes, x.type.dtype, tuple(starts), steps)

    def pad(self, x: Value, low: Sequence[int], high: Sequence[int], fill: float | int | bool) -> Value:
        """Elements put around it."""
        if not any((*low, *high)):
            return x
        sizes = zip(low, static(x.type.shape), high, strict=True)
        shape = [before + size + behind for before, size, behind in sizes]
        return self.append(Pad, (x,), shape, x.type.dtype, tuple(low), tuple(high), fill)

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        """Dims of extent 1 repeated."""
        return x if tuple(shape) == x.type.shape else self.append(Broadcast, (x,), shape, x.type.dtype)

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """Values one after another."""
        shape = list(static(parts[0].type.shape))
        shape[axis] = sum(static(part.type.shape)[axis] for part in parts)
        return self.append(Concat, parts, shape, parts[0].type.dtype, axis)

    def gather(self, x: Value, indices: Value, axis: int) -> Value:
        """Slices along an axis, at indices that are in range."""
        shape = static(x.type.shape)
        taken = (*shape[:axis], *static(indices.type.shape), *shape[axis + 1 :])
        return self.append(Gather, (x, indices), taken, x.type.dtype, axis)

    def reduce(self, x: Value, kind: str, axes: Sequence[int]) -> Value:
        """Dims combined, and kept with extent 1."""
        shape = [1 if d in axes else extent for d, extent in enumerate(static(x.type.shape))]
        dtype = DType.I64 if kind in ("argmin", "argmax") else x.type.dtype
        return self.append(Reduce, (x,), shape, dtype, kind, tuple(axes))

    def matmul(self, a: Value, b: Value, dtype: DType) -> Value:
        """``(B, M, K) @ (B, K, N)``, or without B."""
        shape = (*static(a.type.shape)[:-1], static(b.type.shape)[-1])
        return self.append(MatMul, (a, b), shape, dtype)

    def conv(
        self,
        x: Value,
        weights: Value,
        spatial: Sequence[int],
        dtype: DType,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[tuple[int, int]],
        groups: int,
    ) -> Value:
        """A convolution of channels-last images with results of ``spatial`` extents."""
        shape = (static(x.type.shape)[0], *spatial, static(weights.type.shape)[0])
        return self.append(
            Conv, (x, weights), shape, dtype, tuple(strides), tuple(dilations), tuple(pads), groups
        )

    def pool(
        self,
        x: Value,
        kind: str,
        spatial: Sequence[int],
        window: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[tuple[int, int]],
    ) -> Value:
        """A pool of channels-last images with results of ``spatial`` extents."""
        first, *_, channels = static(x.type.shape)
        attributes = (kind, tuple(window), tuple(strides), tuple(dilations), tuple(pads))
        return self.append(Pool, (x,), (first, *spatial, channels), x.type.dtype, *attributes)
