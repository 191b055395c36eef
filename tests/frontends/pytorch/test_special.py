"""Special functions of PyTorch models, at poles, in every range of their approximations, and as f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.frontends.torch_import import as_array, import_and_check, import_and_check_all

from mansard.ir.interpreter.graph import interpret

INF, NAN = torch.inf, torch.nan
WIDE = torch.tensor([-20.3, -7.5, -3.9, -0.4, -1e-3, 0.2, 0.5, 0.9, 1.0, 1.5, 2.0, 3.7, 8.9, 9.1, 25.0, 60.0])
POLES = torch.tensor([0.0, -0.0, -1.0, -2.0, INF, NAN])
UNIT = torch.tensor([-1.0, -0.999, -0.8, -0.69, -0.1, 0.0, 1e-6, 0.3, 0.71, 0.95, 1.0, 1.5, NAN])


FUNCTIONS: list[tuple[Callable[..., Any], torch.Tensor]] = [
    (lambda x: (torch.lgamma(x), torch.digamma(x), torch.angle(x)), torch.cat([WIDE, POLES])),
    (lambda x: (torch.polygamma(1, x), torch.lgamma(x)), WIDE),
    (lambda x: (torch.polygamma(2, x), torch.polygamma(4, x)), WIDE[5:]),
    (torch.erfinv, UNIT),
    (lambda x: (torch.i0(x), torch.special.i0e(x)), torch.cat([WIDE, torch.tensor([0.0, NAN])])),
    (lambda x: (torch.special.i1(x), torch.special.i1e(x)), WIDE),
    (lambda x: torch.special.zeta(torch.tensor(2.5, dtype=x.dtype), x), WIDE[5:]),
]


@pytest.mark.parametrize(
    ("function", "inputs", "dtype"),
    [
        # Behind the first, each as f32 or as f64: the types differ in the number of terms alone.
        pytest.param(*case, dtype, marks=[pytest.mark.slow] if number and (number + double) % 2 else [])
        for number, case in enumerate(FUNCTIONS)
        for double, dtype in enumerate((torch.float32, torch.float64))
    ],
)
def test_functions_of_one_number(
    function: Callable[..., Any], inputs: torch.Tensor, dtype: torch.dtype
) -> None:
    import_and_check(function, inputs.to(dtype))


def test_special_functions_of_halves_and_integers() -> None:
    import_and_check_all({
        "halves": (lambda x: (torch.lgamma(x), torch.digamma(x)), WIDE[7:13].half()),
        "integers": (
            lambda x: (torch.lgamma(x), torch.erfinv(x * 0), torch.angle(x)), torch.arange(-1, 5)),
    })  # fmt: skip


@pytest.mark.parametrize("function", [torch.igamma, torch.igammac])
def test_incomplete_gamma_functions(function: Callable[..., torch.Tensor]) -> None:
    a = torch.tensor([0.1, 0.5, 1.0, 3.0, 10.0, 50.0, 0.0, 2.0, -1.0]).repeat_interleave(8)
    x = torch.tensor([0.0, 0.05, 0.7, 1.0, 4.0, 12.0, 60.0, INF]).repeat(9)
    import_and_check(function, a, x)


def test_mantissas_and_neighbours() -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -2.0, 3.5, 1e-30, 2.0**100, -1e-5, 0.99999994, 1e-40, 2.0**127])
    import_and_check_all({"f32": (torch.frexp, x), "f64": (torch.frexp, x.double() * 1e200)})
    large = x[2:9].repeat(3)
    halves = torch.tensor([1.0, -2.0, 0.3, 65504.0, 3e-5, 0.0]).half()
    pairs = [
        (large, torch.tensor([INF, -INF, 0.0]).repeat_interleave(7)),
        *((values, values + 9) for values in (halves, halves.bfloat16())),
    ]
    graph = import_and_check_all({str(x.dtype): (torch.nextafter, x, other) for x, other in pairs})
    # exact, which the tolerance of the check would not show
    results = interpret(graph, [as_array(x) for pair in pairs for x in pair])
    for result, pair in zip(results, pairs, strict=True):
        assert result.astype(float).tolist() == torch.nextafter(*pair).tolist()
