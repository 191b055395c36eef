"""Special functions of PyTorch models, at poles, in every range of their approximations, and as f64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.frontends.torch_import import as_array, import_and_check

from mansard.ir.interpreter.graph import interpret

INF, NAN = torch.inf, torch.nan
WIDE = torch.tensor([-20.3, -7.5, -3.9, -0.4, -1e-3, 0.2, 0.5, 0.9, 1.0, 1.5, 2.0, 3.7, 8.9, 9.1, 25.0, 60.0])
POLES = torch.tensor([0.0, -0.0, -1.0, -2.0, INF, NAN])
UNIT = torch.tensor([-1.0, -0.999, -0.8, -0.69, -0.1, 0.0, 1e-6, 0.3, 0.71, 0.95, 1.0, 1.5, NAN])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: (torch.lgamma(x), torch.digamma(x), torch.angle(x)), torch.cat([WIDE, POLES])),
        (lambda x: (torch.polygamma(1, x), torch.lgamma(x)), WIDE),
        (lambda x: (torch.polygamma(2, x), torch.polygamma(4, x)), WIDE[5:]),
        (torch.erfinv, UNIT),
        (lambda x: (torch.i0(x), torch.special.i0e(x)), torch.cat([WIDE, torch.tensor([0.0, NAN])])),
        (lambda x: (torch.special.i1(x), torch.special.i1e(x)), WIDE),
        (lambda x: torch.special.zeta(torch.tensor(2.5, dtype=x.dtype), x), WIDE[5:]),
    ],
)
def test_functions_of_one_number(
    function: Callable[..., torch.Tensor], inputs: torch.Tensor, dtype: torch.dtype
) -> None:
    import_and_check(function, inputs.to(dtype))


def test_special_functions_of_halves_and_integers() -> None:
    import_and_check(lambda x: (torch.lgamma(x), torch.digamma(x)), WIDE[7:13].half())
    import_and_check(lambda x: (torch.lgamma(x), torch.erfinv(x * 0), torch.angle(x)), torch.arange(-1, 5))


@pytest.mark.parametrize("function", [torch.igamma, torch.igammac])
def test_incomplete_gamma_functions(function: Callable[..., torch.Tensor]) -> None:
    a = torch.tensor([0.1, 0.5, 1.0, 3.0, 10.0, 50.0, 0.0, 2.0, -1.0]).repeat_interleave(8)
    x = torch.tensor([0.0, 0.05, 0.7, 1.0, 4.0, 12.0, 60.0, INF]).repeat(9)
    import_and_check(function, a, x)


def test_mantissas_and_neighbours() -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -2.0, 3.5, 1e-30, 2.0**100, -1e-5, 0.99999994, 1e-40, 2.0**127])
    import_and_check(torch.frexp, x)
    import_and_check(torch.frexp, x.double() * 1e200)
    large = x[2:9]
    for target in (INF, -INF, 0.0):
        other = torch.full_like(large, target)
        # exact, which the tolerance of the check would not show
        graph = import_and_check(torch.nextafter, large, other)
        (result,) = interpret(graph, [large.numpy(), other.numpy()])
        assert result.tolist() == torch.nextafter(large, other).tolist()
    for dtype in (torch.float16, torch.bfloat16):
        values = torch.tensor([1.0, -2.0, 0.3, 65504.0, 3e-5, 0.0]).to(dtype)
        graph = import_and_check(torch.nextafter, values, values + 9)
        (result,) = interpret(graph, [as_array(values), as_array(values + 9)])
        assert result.astype(float).tolist() == torch.nextafter(values, values + 9).tolist()
