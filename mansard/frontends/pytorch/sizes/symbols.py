"""Conversion of torch's symbolic sizes to dim expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.errors import ImportModelError
from mansard.frontends.pytorch.sizes.dynamic import STATED_ZERO, DimNames

UNBOUNDED_MAX = 2**31 - 1
"""The upper bound of a dim without one from the user."""


class SymbolTable:
    """Names and ranges of a program's size symbols.

    A symbol is named after the user's ``Dim``, or else after the first input dim with it (``ids_dim1``). Its
    range is the user's, or else torch's; the lower bound is at least 1, unless a `Dim` states 0. It is a
    multiple of what the guards of torch.export divide it by: ``remainders`` are 0.
    """

    def __init__(
        self,
        ranges: Mapping[Any, Any],
        shapes: Sequence[Sequence[Any]],
        labels: Sequence[str],
        dim_names: DimNames,
        remainders: Sequence[Any] = (),
    ) -> None:
        self.dims: dict[Any, DimLike] = {}
        taken: set[str] = set()
        for number, shape in enumerate(shapes):
            for axis, size in enumerate(shape):
                for symbol in sorted(_free_symbols(size), key=str):
                    if symbol not in self.dims:
                        given = _root(dim_names.get((number, axis)))
                        name = given.__name__ if given is not None else f"{labels[number]}_dim{axis}"
                        divisor = _divisor(symbol, remainders)
                        self.dims[symbol] = _symbol(_unused(name, taken), given, ranges.get(symbol), divisor)

    @classmethod
    def of(cls, program: torch.export.ExportedProgram, dim_names: DimNames) -> SymbolTable:
        """The symbols of a program's inputs."""
        sizes = input_sizes(program)
        return cls(
            program.range_constraints, list(sizes.values()), list(sizes), dim_names, divisions(program)
        )

    def dim(self, size: Any) -> DimLike:
        """A size of an input as a dim expression."""
        if isinstance(size, torch.SymInt):
            return self._convert(size.node.expr)
        return int(size)

    def _convert(self, expression: Any) -> DimLike:
        if expression.is_Symbol:
            if expression not in self.dims:
                raise ImportModelError(f"the size {expression} occurs in no input")
            return self.dims[expression]
        if expression.is_Integer:
            return int(expression)
        parts = [self._convert(a) for a in expression.args]
        if expression.is_Add:
            return dims.add(*parts)
        if expression.is_Mul:
            return dims.product(parts)
        if expression.is_Pow and isinstance(parts[1], int) and parts[1] >= 0:
            return dims.product([parts[0]] * parts[1])
        function = _FUNCTIONS.get(type(expression).__name__)
        if function is None:
            raise ImportModelError(f"the input size {expression} is not supported")
        result = parts[0]
        for part in parts[1:]:
            result = function(result, part)
        return result


_FUNCTIONS = {
    "FloorDiv": dims.floordiv, "CleanDiv": dims.floordiv, "Mod": dims.mod, "PythonMod": dims.mod,
    "Max": dims.maximum, "Min": dims.minimum,
}  # fmt: skip


def _free_symbols(size: Any) -> set[Any]:
    return set(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else set()


def input_sizes(program: torch.export.ExportedProgram) -> dict[str, tuple[Any, ...]]:
    """The sizes of the user's inputs by the names of their placeholders, in order; of numbers, none."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    user = [s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    held = {name: values.get(name) for name in user}
    return {name: tuple(v.shape) if isinstance(v, torch.Tensor) else () for name, v in held.items()}


def shape_environment(program: torch.export.ExportedProgram) -> Any:
    """The shape environment of a program's symbolic sizes; None if all are static."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def _root(given: Any) -> Any:
    """The ``Dim`` from which a dim such as ``16 * k`` is derived; None for hints without a name."""
    while given is not None and hasattr(given, "root"):
        given = given.root
    return given if given is not None and hasattr(given, "__name__") else None


def divisions(program: torch.export.ExportedProgram) -> tuple[Any, ...]:
    """The remainders that torch.export found to be 0 for the sizes of a program's inputs."""
    return tuple(sorted(getattr(shape_environment(program), "divisible", ()), key=str))


def _divisor(symbol: Any, remainders: Sequence[Any]) -> int:
    """What a symbol is a multiple of, where these remainders are 0."""
    divisor = 1
    for remainder in remainders:
        if len(remainder.args) != 2 or remainder.free_symbols != {symbol}:
            continue
        value, modulus = remainder.args
        factor = value / symbol
        if factor.is_Integer and modulus.is_Integer and int(modulus) > 0:
            divisor = math.lcm(divisor, int(modulus) // math.gcd(int(factor), int(modulus)))
    return divisor


def _symbol(name: str, given: Any, known: Any, divisor: int) -> DimLike:
    low = getattr(given, "min", None)
    high = getattr(given, "max", None)
    if known is not None:
        low = known.lower if low is None else low
        high = known.upper if high is None else high
    lower_bound = 0 if getattr(given, STATED_ZERO, False) else 1
    low_end, high_end = max(lower_bound, _integer(low, 1)), _integer(high, UNBOUNDED_MAX)
    return dims.symbol(Dim(name, low_end, high_end, divisor))


def _integer(bound: Any, default: int) -> int:
    """A bound as an int; ``default`` for none and for infinity."""
    if bound is None or str(bound) in ("oo", "int_oo", "inf"):
        return default
    return min(int(bound), UNBOUNDED_MAX)


def _unused(name: str, taken: set[str]) -> str:
    base = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    base = base if base[:1].isalpha() or base[:1] == "_" else f"dim_{base}"
    candidate, i = base, 0
    while candidate in taken:
        i += 1
        candidate = f"{base}_{i}"
    taken.add(candidate)
    return candidate
