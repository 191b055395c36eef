"""PyTorch's results for NaN, infinities, zeros, subnormals and very large numbers, on every device."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.special_values import Outputs, differences, rolled, special_values

import mansard

DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SLOW = [(torch.float16, "cpu"), (torch.float64, "vulkan"), (torch.bfloat16, "vulkan")]
"""Each dtype runs on one of the devices by default, float32 on both."""
SLOW_GROUPS = {
    torch.float64: ("comparisons", "extremes", "arithmetic"),
    torch.float16: ("comparisons", "extremes", "functions"),
    torch.bfloat16: ("bounds", "extremes", "functions"),
}
"""Groups that float32 covers by default, on both devices; others show the rounding of these dtypes, and
the functions of float64."""


def dtypes_on_devices(group: str) -> pytest.MarkDecorator:
    """Parameters of the tests of a group of functions."""
    return pytest.mark.parametrize(
        ("dtype", "device"),
        [
            pytest.param(
                dtype,
                device,
                id=f"{str(dtype)[6:]}-{device}",
                marks=[
                    *([pytest.mark.vulkan] if device == "vulkan" else []),
                    *(
                        [pytest.mark.slow]
                        if (dtype, device) in SLOW or group in SLOW_GROUPS.get(dtype, ())
                        else []
                    ),
                ],
            )
            for dtype in DTYPES
            for device in ("cpu", "vulkan")
        ],
    )


COMPARISONS: dict[str, Any] = {
    "x == x": lambda x: x == x,
    "x == copy": lambda x: x == x.clone(),
    "x != x": lambda x: x != x,
    "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite, "isneginf": torch.isneginf,
    "isposinf": torch.isposinf, "signbit": lambda x: torch.signbit(x.nan_to_num()),
    "bool": lambda x: x.bool(),
    "logical_not": torch.logical_not, "< 0.1": lambda x: x < 0.1, "<= 0.1": lambda x: x <= 0.1,
    "> 0.1": lambda x: x > 0.1, ">= 0.1": lambda x: x >= 0.1, "== 0.1": lambda x: x == 0.1,
    "!= 0.1": lambda x: x != 0.1, "not < 0.1": lambda x: ~(x < 0.1), "== inf": lambda x: x == math.inf,
    "eq": lambda x: x == rolled(x, 1), "ne": lambda x: x != rolled(x, 1), "lt": lambda x: x < rolled(x, 1),
    "le": lambda x: x <= rolled(x, 1), "gt": lambda x: x > rolled(x, 1), "ge": lambda x: x >= rolled(x, 1),
    "isclose": lambda x: torch.isclose(x, rolled(x, 1)),
    "isclose, NaN too": lambda x: torch.isclose(x, x, equal_nan=True),
    "where": lambda x: torch.where(x == x, x, torch.zeros_like(x)),
    "masked_fill": lambda x: x.masked_fill(x != x, 2.0),
}  # fmt: skip

EXTREMES: dict[str, Any] = {
    "clamp": lambda x: x.clamp(-1, 2), "clamp from": lambda x: x.clamp(min=0),
    "clamp to": lambda x: x.clamp(max=0.3), "clamp to nothing": lambda x: x.clamp(2, -1),
    "clamp from NaN": lambda x: x.clamp(math.nan, 2.0),
    "clamp between tensors": lambda x: torch.clamp(x, x.flip(0), rolled(x, 3)),
    "relu": torch.relu, "relu6": F.relu6, "hardtanh": F.hardtanh, "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish, "leaky_relu": F.leaky_relu, "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "hardshrink": F.hardshrink, "prelu": lambda x: F.prelu(x, torch.full((1,), 0.3, dtype=x.dtype)),
    "nan_to_num": torch.nan_to_num, "abs": torch.abs, "neg": torch.neg, "sign": torch.sign,
}  # fmt: skip

PAIRS: dict[str, Any] = {
    "maximum of a number": lambda x: torch.maximum(x, torch.zeros((), dtype=x.dtype)),
    "maximum": lambda x: torch.maximum(x, rolled(x, 1)), "minimum": lambda x: torch.minimum(x, rolled(x, 1)),
    "fmax": lambda x: torch.fmax(x, rolled(x, 1)), "fmin": lambda x: torch.fmin(x, rolled(x, 1)),
    "fmax of a number": lambda x: torch.fmax(x, torch.zeros((), dtype=x.dtype)),
    "amax": lambda x: x[:40].reshape(8, 5).amax(1), "amin": lambda x: x[:40].reshape(8, 5).amin(0),
    "argmax": lambda x: x[:40].reshape(8, 5).argmax(1), "argmin": lambda x: x[:40].reshape(8, 5).argmin(0),
    "max": lambda x: x.max(), "min": lambda x: x.min(), "min without NaN": lambda x: x[1:].min(),
    "values of max": lambda x: x[:40].reshape(8, 5).max(1).values,
    "indices of min": lambda x: x[:40].reshape(8, 5).min(1).indices,
    "argmax of all": lambda x: x.argmax(), "max_pool1d": lambda x: F.max_pool1d(x[None, None], 3, 1),
    "max_pool2d": lambda x: F.max_pool2d(x[:36].reshape(1, 1, 6, 6), 3, 2, 1),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[:36].reshape(1, 1, 6, 6), 2),
}  # fmt: skip
"""The sign of a zero among zeros is not compared."""


ARITHMETIC: dict[str, Any] = {
    "add": lambda x: x + rolled(x, 1), "sub": lambda x: x - rolled(x, 1), "mul": lambda x: x * rolled(x, 1),
    "div": lambda x: x / rolled(x, 1), "x - x": lambda x: x - x, "x / x": lambda x: x / x,
    "x * 0": lambda x: x * 0.0, "-0.0 * x": lambda x: -0.0 * x, "0 / x": lambda x: torch.zeros_like(x) / x,
    "x / 0": lambda x: x / 0.0, "x / -0.0": lambda x: x / -0.0,
    "x / zeros": lambda x: x / torch.zeros_like(x),
    "x + x * 0": lambda x: x + x * 0.0, "x + 0": lambda x: x + 0.0, "0 - x": lambda x: 0.0 - x,
    "1 / x": lambda x: 1.0 / x, "fmod": lambda x: torch.fmod(x[13:], rolled(x[13:], 1)),
    "remainder": lambda x: torch.remainder(x[13:], rolled(x[13:], 1)), "remainder of 3": lambda x: x % 3.0,
    "divided down by a half": lambda x: x // 0.5, "divided down by -2": lambda x: torch.floor_divide(x, -2),
    "divided down": lambda x: torch.div(x, rolled(x, 2), rounding_mode="floor"),
    "sum of zeros": lambda x: (x * 0.0).sum(),
    "product with zeros": lambda x: (x[:8, None] @ x.new_zeros(1, 3)).abs(),
}  # fmt: skip

SUMS: dict[str, Any] = {
    "x + x - x": lambda x: (x + x) - x, "x + y - x": lambda x: (x + rolled(x, 1)) - x,
    "x - y + y": lambda x: (x - rolled(x, 1)) + rolled(x, 1),
    "x + 1 - 1": lambda x: (x + 1.0) - 1.0, "x - (x + y)": lambda x: x - (x + rolled(x, 1)),
    "x + (y - x)": lambda x: x + (rolled(x, 1) - x),
}  # fmt: skip
"""What compilers that reassociate simplify."""

FUNCTIONS: dict[str, Any] = {
    "silu": F.silu, "softplus": F.softplus, "mish": F.mish, "elu": F.elu, "selu": F.selu, "celu": F.celu,
    "sigmoid": torch.sigmoid, "logsigmoid": F.logsigmoid, "tanh": torch.tanh, "softsign": F.softsign,
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2,
    "log10": torch.log10, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin,
    "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan,
    "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh, "erf": torch.erf,
    "erfc": torch.erfc, "erfc of tails": lambda x: torch.erfc(torch.arange(-40, 90).to(x) / 8),
    "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc, "frac": torch.frac,
    "square": torch.square, "x ** 3": lambda x: x**3, "x ** 2.5": lambda x: x**2.5,
    "2 ** x": lambda x: 2.0**x,
    "pow": lambda x: torch.pow(x, rolled(x, 1)), "atan2": lambda x: torch.atan2(x, rolled(x, 1)),
    "hypot": lambda x: torch.hypot(x, rolled(x, 1)), "xlogy": lambda x: torch.xlogy(x, rolled(x, 1)),
    "copysign": lambda x: torch.copysign(x, rolled(x, 1).nan_to_num()),
    "logaddexp": lambda x: torch.logaddexp(x, rolled(x, 1)),
    "softmax": lambda x: torch.softmax(x[:40].reshape(10, 4), 1),
    "logsumexp": lambda x: torch.logsumexp(x[:40].reshape(10, 4), 1),
}  # fmt: skip


def _unsigned(function: Any) -> Any:
    return lambda x: function(x).abs()


def check(functions: dict[str, Any], dtype: torch.dtype, device: str, **allowed: bool) -> None:
    x = special_values(dtype)
    results = mansard.compile(Outputs(functions), (x,), devices=device)(x)
    wrong = {}
    for (name, function), result in zip(functions.items(), results, strict=True):
        different = differences(function(x), result, x, **allowed)
        if different:
            wrong[name] = different[:5]
    assert not wrong


class TestSpecialValues:
    @dtypes_on_devices("comparisons")
    def test_comparisons(self, dtype: torch.dtype, device: str) -> None:
        check(COMPARISONS, dtype, device)

    @dtypes_on_devices("bounds")
    def test_bounds(self, dtype: torch.dtype, device: str) -> None:
        check(EXTREMES, dtype, device)

    @dtypes_on_devices("extremes")
    def test_extremes(self, dtype: torch.dtype, device: str) -> None:
        check(PAIRS, dtype, device, zero_signs=False)

    @dtypes_on_devices("arithmetic")
    def test_arithmetic(self, dtype: torch.dtype, device: str) -> None:
        functions = dict(ARITHMETIC)
        if device == "vulkan":
            # Mesa's llvmpipe takes the sum with a literal 0 as the other operand, -0.0 too.
            functions |= {name: _unsigned(ARITHMETIC[name]) for name in ("x + 0", "0 - x")}
        check(functions, dtype, device)

    @dtypes_on_devices("functions")
    def test_functions(self, dtype: torch.dtype, device: str) -> None:
        check(FUNCTIONS, dtype, device, subnormals=dtype is not torch.bfloat16)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_are_in_the_given_order(device: str) -> None:
    check(SUMS, torch.float32, device)
