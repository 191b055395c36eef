"""The inputs of a model: reads the arguments of a call and checks them against the shape contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mansard import dims
from mansard.dims import Dim, DimLike, Expr
from mansard.errors import InputError, ShapeContractError
from mansard.plan.assertions import check_array
from mansard.plan.constraints import ShapeConstraint, check_constraints
from mansard.plan.plan import AssertSpec, TensorSpec
from mansard.runtime.memory.tensors import Array, contiguous, describe, is_torch, to_array

MAX_KNOWN_SHAPES = 64
"""How many sets of input shapes a signature remembers as valid."""


@dataclass
class PreparedInputs:
    """The checked inputs of a call: contiguous arrays in the signature's order, and the symbols' values."""

    arrays: tuple[Array, ...]
    dims: Mapping[str, int]
    torch: bool
    """Whether the caller passed torch tensors, and so receives torch tensors."""
    copied: tuple[int, int] = (0, 0)
    """How many inputs were copied to be contiguous, and their bytes."""


class Signature:
    """The inputs of a model, by which the arguments of a call are checked."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        symbols: Sequence[Dim],
        asserts: Sequence[AssertSpec] = (),
        constraints: Sequence[ShapeConstraint] = (),
    ) -> None:
        """``asserts`` of inputs are checked with them, others left alone."""
        self._constraints = tuple(constraints)
        self.inputs = tuple(inputs)
        numbers = {spec.value: number for number, spec in enumerate(self.inputs)}
        self._asserts = [(numbers[check.value], check) for check in asserts if check.value in numbers]
        self.symbols = {dim.name: dim for dim in symbols}
        self._names = [spec.name for spec in self.inputs]
        self._axes = [tuple(map(_axis, spec.shape)) for spec in self.inputs]
        self._dtypes = [spec.dtype.numpy for spec in self.inputs if spec.dtype.bits >= 8]
        self._known_shapes: dict[tuple[tuple[int, ...], ...], Mapping[str, int]] = {}
        for spec in self.inputs:
            if spec.dtype.bits < 8:
                raise InputError(f"input {spec.name!r}: packed {spec.dtype.value} inputs are not supported")

    def __str__(self) -> str:
        return ", ".join(describe(spec) for spec in self.inputs) or "no inputs"

    def arrays(self, args: Sequence[object], named: Mapping[str, object]) -> tuple[list[Array], bool]:
        """The arguments of a call as arrays in order, of any shape, and whether any is a torch tensor.

        Raises InputError (number, names, kinds, element types).
        """
        values = self._in_order(args, named)
        arrays = [to_array(value, spec) for spec, value in zip(self.inputs, values, strict=True)]
        return arrays, any(map(is_torch, values))

    def prepare(self, args: Sequence[object], named: Mapping[str, object]) -> PreparedInputs:
        """Check the arguments of a call and convert them to contiguous arrays.

        Raises InputError (number, names, kinds, element types, rank) and ShapeContractError (dims);
        both name the input and say what the model expects. Raises IndexOutOfRangeError and
        ModelAssertionError where the contents break an assert of the model.
        """
        prepared = self._prepare_known(args, named) or self._prepare_checked(args, named)
        for number, check in self._asserts:
            check_array(check, prepared.arrays[number], prepared.dims)
        return prepared

    def _prepare_known(self, args: Sequence[object], named: Mapping[str, object]) -> PreparedInputs | None:
        """The fast path: NumPy arrays that can be read in place, of shapes that were checked before."""
        if named or len(args) != len(self._dtypes):
            return None
        for value, dtype in zip(args, self._dtypes, strict=True):
            if type(value) is not np.ndarray or value.dtype is not dtype:
                return None
            flags = value.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
        arrays: tuple[Array, ...] = tuple(args)  # type: ignore[arg-type]  # checked above
        sizes = self._known_shapes.get(tuple([array.shape for array in arrays]))
        return None if sizes is None else PreparedInputs(arrays, sizes, torch=False)

    def _prepare_checked(self, args: Sequence[object], named: Mapping[str, object]) -> PreparedInputs:
        values = self._in_order(args, named)
        arrays = [to_array(value, spec) for spec, value in zip(self.inputs, values, strict=True)]
        shapes = tuple([array.shape for array in arrays])
        sizes = self._known_shapes.get(shapes)
        if sizes is None:
            sizes = self._bind(arrays)
            if len(self._known_shapes) < MAX_KNOWN_SHAPES:
                self._known_shapes[shapes] = sizes
        ready = [contiguous(array) for array in arrays]
        copied = [b.nbytes for a, b in zip(arrays, ready, strict=True) if a is not b]
        return PreparedInputs(tuple(ready), sizes, any(map(is_torch, values)), (len(copied), sum(copied)))

    def _in_order(self, args: Sequence[object], named: Mapping[str, object]) -> list[object]:
        if len(args) > len(self._names):
            raise InputError(f"{len(args)} inputs were given; the model takes {len(self._names)}: {self}")
        values = dict(zip(self._names, args, strict=False))
        for name, value in named.items():
            if name not in self._names:
                raise InputError(f"the model has no input {name!r}; its inputs: {self}")
            if name in values:
                raise InputError(f"input {name!r} is given twice, by position and by name")
            values[name] = value
        missing = [name for name in self._names if name not in values]
        if missing:
            raise InputError(f"missing inputs: {', '.join(missing)}; the model takes {self}")
        return [values[name] for name in self._names]

    def _bind(self, arrays: Sequence[Array]) -> dict[str, int]:
        """The value of every symbol, read off the shapes; checks all dims of the inputs, and constraints."""
        sizes: dict[str, int] = {}
        origin: dict[str, str] = {}
        expressions: list[tuple[str, int, DimLike]] = []
        for spec, axes, array in zip(self.inputs, self._axes, arrays, strict=True):
            if array.ndim != len(spec.shape):
                raise InputError(
                    f"input {spec.name!r} has rank {array.ndim} (shape {list(array.shape)}); "
                    f"the model takes {describe(spec)}"
                )
            for axis, (expected, actual) in enumerate(zip(axes, array.shape, strict=True)):
                if isinstance(expected, int):
                    if actual != expected:
                        raise ShapeContractError(
                            f"input {spec.name!r}, axis {axis} is {actual}; "
                            f"the model was compiled for {expected}"
                        )
                    continue
                where = f"input {spec.name!r}, axis {axis}"
                if isinstance(expected, Dim):
                    self._bind_symbol(expected, actual, where, sizes, origin)
                else:
                    expressions.append((where, actual, expected))
        for where, actual, expected in expressions:
            self._bind_expression(expected, actual, where, sizes, origin)
        check_constraints(self._constraints, sizes, origin)
        return sizes

    def _bind_symbol(
        self, symbol: Dim, actual: int, where: str, sizes: dict[str, int], origin: dict[str, str]
    ) -> None:
        known = sizes.get(symbol.name)
        if known is None:
            symbol.check(actual, where)
            sizes[symbol.name], origin[symbol.name] = actual, where
        elif known != actual:
            raise ShapeContractError(
                f"{where}: dim {symbol.name!r} is {actual}, but it is {known} at {origin[symbol.name]}"
            )

    def _bind_expression(
        self, expected: DimLike, actual: int, where: str, sizes: dict[str, int], origin: dict[str, str]
    ) -> None:
        unknown = sorted(s.name for s in dims.to_expr(expected).symbols() if s.name not in sizes)
        if len(unknown) == 1:
            value = _solve(expected, unknown[0], actual, sizes)
            if value is None:
                raise ShapeContractError(f"{where} is {actual}; no {unknown[0]!r} makes {expected} that")
            self._bind_symbol(self.symbols[unknown[0]], value, where, sizes, origin)
        elif unknown:
            raise InputError(f"{where}: the shapes do not tell {', '.join(unknown)} of {expected}")
        size = dims.evaluate(expected, sizes)
        if size != actual:
            at = ", ".join(
                f"{n}={sizes[n]}" for n in sorted(s.name for s in dims.to_expr(expected).symbols())
            )
            raise ShapeContractError(f"{where} is {actual}; the model needs {expected} = {size} ({at})")


def _axis(value: DimLike) -> int | Dim | Expr:
    """The required extent of an axis: a number, a bare symbol, or an expression."""
    if isinstance(value, int):
        return value
    symbols = tuple(value.symbols())
    return symbols[0] if len(symbols) == 1 and dims.symbol(symbols[0]) == value else value


def _solve(expected: DimLike, name: str, actual: int, sizes: Mapping[str, int]) -> int | None:
    """The value of ``name`` for which a linear expression is ``actual``."""
    at = [dims.evaluate(expected, {**sizes, name: value}) for value in (0, 1, 2)]
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope or (actual - at[0]) % slope:
        return None
    return (actual - at[0]) // slope
