"""Decompositions of integer ops that torch-mlir computes in floating point, or lacks.

Each rule computes in the integers' own width and sign, wrapping as PyTorch does. Ops on floats keep the rule
they had. Division by zero, an error in PyTorch, is what the Graph's scalar ops say: the quotient is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Rule = Callable[..., Any]
Number = int | float | bool


def integer_table(table: Mapping[Any, Rule]) -> dict[Any, Rule]:
    """The rules for integers; for other types each falls back to the op's rule in ``table``."""
    aten = torch.ops.aten
    rules = {
        aten.neg.default: _neg,
        aten.floor_divide.default: _floor_divide,
        aten.floor_divide.Scalar: _floor_divide,
        aten.div.Tensor_mode: _divide,
        aten.div.Scalar_mode: _divide,
        aten.fmod.Tensor: _fmod,
        aten.fmod.Scalar: _fmod,
        aten.gcd.default: _gcd,
        aten.lcm.default: _lcm,
        aten.add.Tensor: _add,
        aten.add.Scalar: _add,
        aten.__lshift__.Tensor: torch.bitwise_left_shift,
        aten.__rshift__.Tensor: torch.bitwise_right_shift,
        aten.pow.Tensor_Scalar: _power_by_number,
        aten.pow.Tensor_Tensor: _power,
        aten.pow.Scalar: _power_of_number,
    }
    return {op: _on_integers(rule, table.get(op)) for op, rule in rules.items()}


def _on_integers(rule: Rule, other: Rule | None) -> Rule:
    """``rule`` where all operands are integers or bool, else ``other`` (None: the op stays)."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        if all(_is_integer(x) for x in args):
            return rule(*args, **kwargs)
        return NotImplemented if other is None else other(*args, **kwargs)

    return chosen


def _is_integer(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return not x.dtype.is_floating_point and not x.dtype.is_complex
    return not isinstance(x, float)


def _neg(x: torch.Tensor) -> torch.Tensor:
    """torch-mlir negates in f32."""
    return torch.rsub(x, 0)


def _floor_divide(a: torch.Tensor, b: Any) -> Any:
    return _divide(a, b, rounding_mode="floor")


def _divide(a: torch.Tensor, b: Any, *, rounding_mode: str | None) -> Any:
    """torch-mlir rounds a quotient in f64 down; the quotient rounded towards zero is that of integers."""
    dtype = torch.result_type(a, b)
    if rounding_mode != "floor" or dtype is torch.bool:
        return NotImplemented
    quotient = torch.div(a, b, rounding_mode="trunc")
    if not dtype.is_signed:
        return quotient
    rest = a - quotient * b
    if isinstance(b, torch.Tensor):
        down = (rest != 0) & ((rest < 0) != (b < 0)) & (b != 0)
    else:
        down = rest > 0 if b < 0 else rest < 0
    return quotient - down.to(dtype)


def _fmod(a: torch.Tensor, b: Any) -> Any:
    """From the remainder with the divisor's sign, which is 0 for a divisor of 0."""
    if torch.result_type(a, b) is torch.bool:
        return NotImplemented
    rest = torch.remainder(a, b)
    return torch.where((rest != 0) & ((rest < 0) != (a < 0)), rest - b, rest)


def _gcd(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Euclid's algorithm, as many steps as consecutive Fibonacci numbers of the type take."""
    a, b = (x.abs() for x in _operands(a, b, torch.result_type(a, b)))
    for _ in range({1: 12, 2: 23, 4: 46, 8: 92}[a.dtype.itemsize]):
        rest = torch.remainder(a, torch.where(b == 0, 1, b))
        a, b = torch.where(b == 0, a, b), torch.where(b == 0, 0, rest)
    return a


def _lcm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    divisor = _gcd(a, b)
    a, b = _operands(a, b, divisor.dtype)
    quotient = torch.div(a, torch.where(divisor == 0, 1, divisor), rounding_mode="trunc")
    return torch.where(divisor == 0, 0, (quotient * b).abs())


def _add(a: torch.Tensor, b: Any, *, alpha: Number = 1) -> Any:
    """Bool values are not added modulo 2, as torch-mlir adds one bit."""
    if torch.result_type(a, b) is not torch.bool:
        return NotImplemented
    return torch.logical_or(*_operands(a, b, torch.bool)) if alpha else a.clone()


def _operands(a: Any, b: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as tensors of the type to which they are promoted."""
    like = a if isinstance(a, torch.Tensor) else b
    first, second = (
        x.to(dtype) if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype, device=like.device)
        for x in (a, b)
    )
    return first, second


# Powers --------------------------------------------------------------------------------------------------
def _power_by_number(base: torch.Tensor, exponent: Number) -> Any:
    """By repeated squaring. PyTorch refuses negative numbers as exponents of integers."""
    dtype = torch.result_type(base, exponent)
    if dtype is torch.bool or exponent < 0:
        return NotImplemented
    exponent = int(exponent)
    result, square = None, base.to(dtype)
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        square = square * square if exponent else square
    # Not ones_like, which torch-mlir does not have for uint8.
    return square * 0 + 1 if result is None else result.clone()


def _power(base: torch.Tensor, exponent: torch.Tensor) -> Any:
    """Modulo 2 ** width, which takes every bit of the exponent. A negative one gives the power truncated to
    an integer: 0 but for bases 1 and -1."""
    dtype = torch.result_type(base, exponent)
    if dtype is torch.bool:
        return NotImplemented
    base, exponent = _operands(base, exponent, dtype)
    return _power_of_bits(base, exponent)


def _power_of_number(base: Number, exponent: torch.Tensor) -> Any:
    dtype = torch.result_type(base, exponent)
    if dtype is torch.bool:
        return NotImplemented
    first, second = _operands(base, exponent, dtype)
    return _power_of_bits(first, second)


def _power_of_bits(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    dtype = base.dtype
    result, square = torch.ones_like(exponent), base
    for bit in range(8 * dtype.itemsize - dtype.is_signed):
        used = (exponent & (1 << bit)) != 0
        result = torch.where(used, result * square, result)
        square = square * square
    if not dtype.is_signed:
        return result
    odd = (exponent & 1) != 0
    units = torch.where(base == 1, 1, torch.where(base == -1, torch.where(odd, -1, 1), 0)).to(dtype)
    return torch.where(exponent < 0, units, result)
