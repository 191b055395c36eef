"""Integer ops of PyTorch models at the extremes of their types: the interpreter's answers are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.frontends.torch_import import Apply, as_array

from mansard.frontends import import_model
from mansard.ir.interpreter.graph import interpret

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# The shortest, without a sign, and the longest, with one: others take the same decompositions.
ENDS = [
    pytest.param(d, marks=[] if d in (torch.uint8, torch.int64) else [pytest.mark.slow]) for d in INTEGERS
]
AMOUNTS = [0, 1, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 100]


def extremes(dtype: torch.dtype) -> torch.Tensor:
    info = torch.iinfo(dtype)
    near = [-3, -2, -1, 0, 1, 2, 3, 7, 100]
    ends = [info.min, info.min + 1, info.max - 1, info.max]
    beyond = [2**24 + 1, -(2**24) - 1, 2**53 + 1, -(2**53) - 1, 2**60 + 3]
    return torch.tensor([v for v in (*near, *ends, *beyond) if info.min <= v <= info.max], dtype=dtype)


def same(results: Sequence[Any], expected: Sequence[torch.Tensor]) -> None:
    for number, (result, tensor) in enumerate(zip(results, expected, strict=True)):
        assert str(result.dtype) == str(tensor.dtype)[6:]
        np.testing.assert_array_equal(result, as_array(tensor), err_msg=f"result {number}")


def exact(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Results equal PyTorch's in every bit; all of one import."""
    graph = import_model(Apply(function), inputs)
    same(interpret(graph, [as_array(x) for x in inputs]), function(*inputs))


@pytest.mark.parametrize(
    "dtype",
    # Of 64 bits the greatest common divisor is of 32 bits in more steps.
    [torch.uint8, torch.int32, pytest.param(torch.int64, marks=pytest.mark.slow)],
)
def test_divisors_and_functions_of_floats(dtype: torch.dtype) -> None:
    a = torch.tensor([0, 0, 12, 100, 89, 7, 1], dtype=dtype)
    b = torch.tensor([0, 5, 18, 75, 55, 7, 0], dtype=dtype)
    exact(lambda a, b: (torch.gcd(a, b), torch.lcm(a, b), torch.isclose(a, b, rtol=0.3)), a, b)
    exact(lambda a, b: (torch.nn.functional.hardtanh(a, 1, 50), torch.copysign(a, b)), a, b)


@pytest.mark.parametrize("dtype", ENDS)
def test_arithmetic(dtype: torch.dtype) -> None:
    x = extremes(dtype)

    def results(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            -a, a.abs(), a.sign(), a.square(), a + b, a - b, a * b, torch.rsub(a, 5, alpha=3),
            torch.add(a, b, alpha=3), torch.minimum(a, b), torch.maximum(a, b), a.clamp(1, 5), a.clamp(min=3),
            a < b, a >= b, a == b, a < 3, a > 2.5, a.sum(0), a.prod(0), a.amax(), a.argmin(),
            a // c, torch.div(a, c, rounding_mode="floor"), a % c, torch.fmod(a, c), a * 7, a + 1.5, a / 2,
            a.floor(), a.round(), a.to(torch.int8), a.to(torch.uint8), a.to(torch.int32), a.to(torch.int64),
            a.cumsum(0), a.cumprod(0), a.bool(), ~a, a & b, a ^ b,
        )  # fmt: skip

    exact(results, x[:, None], x[None, :], x[x != 0][None, :])


@pytest.mark.parametrize("dtype", ENDS)
def test_numbers_as_operands(dtype: torch.dtype) -> None:
    x, signed = extremes(dtype), dtype.is_signed
    divisors = (1, 2, 3, 7, *((-1, -3) if signed else ()))

    def results(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        quotients = [a // n for n in divisors] + [a % n for n in divisors]
        remainders = [torch.fmod(a, n) for n in divisors]
        truncated = [torch.div(a, n, rounding_mode="trunc") for n in divisors if n > 0]
        powers = [a**n for n in (0, 1, 2, 3, 5, 9)]
        return (*quotients, *remainders, *truncated, *powers)

    exact(results, x)


@pytest.mark.parametrize("dtype", ENDS)
def test_shifts_by_any_amount(dtype: torch.dtype) -> None:
    """By the width or more, or by less than 0: zeros, or copies of the sign."""
    x = extremes(dtype)[:, None]
    amounts = torch.tensor([[*AMOUNTS, *([-1, -5, -100] if dtype.is_signed else [])]], dtype=dtype)

    def results(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fixed = [a << 2, a >> 2, a << 33, a >> 33, a >> 100]
        return (torch.bitwise_left_shift(a, b), torch.bitwise_right_shift(a, b), a << b, a >> b, *fixed)

    exact(results, x, amounts)


@pytest.mark.parametrize("dtype", ENDS)
def test_powers(dtype: torch.dtype) -> None:
    bases, exponents = extremes(dtype)[:, None], [0, 1, 2, 3, 5, 8, 31, 63, 101]
    if dtype.is_signed:
        exponents += [-1, -2, -3]
    powers = torch.tensor([exponents], dtype=dtype)
    exact(lambda a, b: (torch.pow(a, b), torch.pow(3, b[:, :9].clone()), a**b), bases, powers)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_smallest_quotient_by_minus_one_wraps(dtype: torch.dtype) -> None:
    """PyTorch itself dies of it on x86; its rounding down gives the wrapped quotient."""
    low = torch.iinfo(dtype).min
    x, y = torch.tensor([low, low + 1, 6], dtype=dtype), torch.tensor([-1, -1, -1], dtype=dtype)
    graph = import_model(Apply(lambda a, b: torch.div(a, b, rounding_mode="trunc")), (x[1:], y[1:]))
    (result,) = interpret(graph, [x[:2].numpy(), y[:2].numpy()])
    assert result.tolist() == [low, -low - 1]


@pytest.mark.parametrize("dtype", ENDS)
def test_division_by_zero_is_zero(dtype: torch.dtype) -> None:
    """An error in PyTorch on the CPU; here the quotient is 0, and so is a truncated remainder. A remainder
    with the divisor's sign is what the quotient leaves."""
    x = extremes(dtype)
    zero, one = torch.zeros_like(x), torch.ones_like(x)

    def results(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        floor, trunc = (torch.div(a, b, rounding_mode=mode) for mode in ("floor", "trunc"))
        return floor, trunc, a // b, torch.fmod(a, b), a % b

    graph = import_model(Apply(results), (x, one))
    for result in interpret(graph, [x.numpy(), zero.numpy()]):
        assert not result.any()


ORDERED: dict[torch.dtype, list[Any]] = {
    torch.uint8: [1, 200, 3, 255, 0, 200, 128, 127],
    torch.int8: [1, -128, 3, 127, 0, -128, -1, 3],
    torch.int16: [1, -(2**15), 3, 2**15 - 1, 0, -(2**15), 5, 5],
    torch.int32: [1, -(2**31), 3, 2**31 - 1, 0, -(2**31), 2**24 + 1, 2**24],
    torch.int64: [1, -(2**63), 3, 2**63 - 1, 0, -(2**63), 2**53 + 1, 2**53],
    torch.bool: [True, False, True, False, False, True, True, False],
    torch.float32: [1.0, torch.nan, -0.0, 0.0, torch.inf, -torch.inf, torch.nan, -3.0],
    torch.float16: [1.0, torch.nan, -0.0, 0.0, torch.inf, -torch.inf, torch.nan, -3.0],
}


ORDERED_ELSEWHERE = (torch.int8, torch.int16, torch.int32, torch.float16)
"""Ordered as the longer or shorter types of their kind are."""


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(d, marks=[pytest.mark.slow] if d in ORDERED_ELSEWHERE else []) for d in ORDERED],
)
def test_orders(dtype: torch.dtype) -> None:
    row = torch.tensor(ORDERED[dtype], dtype=dtype)

    def results(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ordered = []
        for descending in (False, True):
            ordered += [*torch.sort(a, stable=True, descending=descending), torch.msort(a)]
            ordered += [*torch.sort(a, dim=0, stable=True, descending=descending)]
            ordered += [torch.argsort(a, stable=True, descending=descending)]
            ordered += [*torch.sort(a[:, :0], stable=True, descending=descending)]
        if dtype is not torch.bool:
            ordered += [torch.topk(a, 3, largest=largest)[0] for largest in (False, True)]
            ordered += [torch.kthvalue(a, 3)[0], *torch.cummax(a, 1), *torch.cummin(a, 1), a.max(1)[0]]
        return tuple(ordered)

    exact(results, torch.stack([row, row.flip(0), row.roll(3)]))


def test_bool() -> None:
    a, b = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])

    def results(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            a + b, a + True, a * b, a | b, a ^ b, a & b, ~a, torch.maximum(a, b), torch.minimum(a, b), a < b,
            a <= b, a == b, a > 0, a != 2, a + 1, a * 2.5, a / b.int().add(1), a.sum(), a.prod(), a.any(),
            a.all(), a.amax(), a.amin(), *a.max(0), *a.min(0), a.cumsum(0), a.cumprod(0),
            a.to(torch.uint8) * 3,
        )  # fmt: skip

    exact(results, a, b)
