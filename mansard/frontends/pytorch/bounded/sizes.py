"""The sizes of a program that its tensors' contents decide: the bound of each, and its value at run time.

torch.export calls such a size ``u0``, and those that follow from it by expressions: ``3*u0``, ``u0 + u1``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

Shape = Sequence[Any]
LARGEST = 2**31 - 1
"""What torch gives as the bound of a size that nobody has bounded is above this."""
_FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "FloorDiv": torch.floor_divide, "CleanDiv": torch.floor_divide, "IntTrueDiv": torch.floor_divide,
    "Mod": torch.remainder, "PythonMod": torch.remainder, "Max": torch.maximum, "Min": torch.minimum,
}  # fmt: skip


class NoFormError(Exception):
    """A size that has no form here; the text says which."""


def is_open(size: Any) -> bool:
    """Whether a size depends on the content of a tensor."""
    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size))


def open_axes(shape: Shape) -> list[int]:
    """The axes of such sizes."""
    return [axis for axis, size in enumerate(shape) if is_open(size)]


def symbols_of(shape: Shape) -> set[Any]:
    """The symbols of such sizes."""
    return {s for size in shape if is_open(size) for s in free_unbacked_symbols(size)}


def largest(size: torch.SymInt, limits: Mapping[Any, Any]) -> Any:
    """The bound of a size, an int or one of torch's symbolic numbers. Raises NoFormError."""
    expression = size.node.expr
    unknown = [s for s in free_unbacked_symbols(size) if s not in limits]
    if unknown:
        raise NoFormError(f"the size {expression} has no bound")
    if expression in limits:
        return limits[expression]
    if any(not isinstance(limits[s], int) for s in free_unbacked_symbols(size)):
        raise NoFormError(f"the size {expression} has a bound that depends on a dynamic dim")
    environment = size.node.shape_env
    ranges = {s: environment.var_to_range[s] for s in expression.free_symbols if s not in limits}
    ranges |= {s: ValueRanges(0, limits[s]) for s in expression.free_symbols if s in limits}
    upper = bound_sympy(expression, ranges).upper
    if not upper.is_Integer or upper > LARGEST:
        raise NoFormError(f"the size {expression} has no bound")
    return int(upper)


def evaluated(expression: Any, counts: Mapping[Any, torch.Tensor]) -> Any:
    """The value of a size: an int64 tensor of rank 0, or an int. Raises NoFormError."""
    if expression in counts:
        return counts[expression]
    if expression.is_Integer:
        return int(expression)
    parts = [evaluated(part, counts) for part in expression.args]
    function: Callable[[Any, Any], Any] | None
    if isinstance(expression, sympy.Add):
        function = torch.add
    elif isinstance(expression, sympy.Mul):
        function = torch.mul
    else:
        function = _FUNCTIONS.get(type(expression).__name__)
    if function is None or len(parts) < 2:
        raise NoFormError(f"the size {expression}")
    result = parts[0]
    for part in parts[1:]:
        result = function(_tensor(result, counts), _tensor(part, counts))
    return result


def _tensor(value: Any, counts: Mapping[Any, torch.Tensor]) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.full((), value, dtype=torch.int64, device=next(iter(counts.values())).device)
