"""Linear algebra of PyTorch models on small matrices, in batches too, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.frontends.torch_import import Apply, import_and_check, import_and_check_all

import mansard
from mansard.errors import ModelAssertionError, UnsupportedOpError
from mansard.frontends import import_model

torch.manual_seed(5)
SQUARE, RIGHT = torch.randn(2, 3, 3, dtype=torch.float64), torch.randn(2, 3, 2, dtype=torch.float64)
DEFINITE = SQUARE @ SQUARE.mT + torch.eye(3, dtype=torch.float64)
linalg = torch.linalg


def solved(lu: torch.Tensor, pivots: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return linalg.lu_solve(lu, pivots, a, adjoint=True), linalg.lu_solve(lu, pivots, a, left=False)


def reflected(q: torch.Tensor, tau: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.ormqr(q, tau, a, left=False, transpose=True), linalg.householder_product(q, tau)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: (linalg.inv(a), linalg.det(a), *linalg.slogdet(a), linalg.matrix_exp(a * 9)),
        lambda a: (*linalg.lu(a), *solved(*linalg.lu_factor(a), a), torch.logdet(a @ a.mT)),
        lambda a: (*linalg.qr(a), *linalg.qr(a[..., :2], "complete")),
        lambda a: (linalg.cholesky(a @ a.mT), linalg.cholesky(a @ a.mT, upper=True)),
        lambda a: (
            linalg.solve_triangular(a, a, upper=False, unitriangular=True),
            linalg.solve_triangular(a, a, upper=True, left=False),
            *torch.triangular_solve(a, a + 3 * torch.eye(3, dtype=a.dtype), transpose=True),
        ),
        lambda a: reflected(*torch.geqrf(a), a),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_factorisations_of_batches(function: Callable[..., Any]) -> None:
    import_and_check(function, SQUARE)


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_solutions() -> None:
    import_and_check_all({
        "solve": (lambda a, b: (linalg.solve(a, b), linalg.solve(a, b[..., 0])), SQUARE, RIGHT),
        "cholesky_solve": (lambda a, b: torch.cholesky_solve(b, torch.cholesky(a)), DEFINITE, RIGHT),
        "cholesky_inverse": (lambda a: torch.cholesky_inverse(a.tril()), SQUARE[0]),
        "of nothing": (lambda a: (linalg.det(a), *linalg.slogdet(a)), torch.zeros(0, 0)),
    })  # fmt: skip


def test_what_is_not_positive_definite() -> None:
    wrong = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 3.0], [3.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]])
    import_and_check(lambda a: linalg.cholesky_ex(a).info, wrong)


def test_a_singular_matrix_is_an_error_of_the_call() -> None:
    with mansard.compile(Apply(linalg.inv), (torch.eye(2),), devices="cpu") as model:
        torch.testing.assert_close(model(torch.eye(2) * 2), torch.eye(2) / 2)
        with pytest.raises(ModelAssertionError, match=r"linalg\.inv: the matrix is singular"):
            model(torch.ones(2, 2))


def test_a_large_matrix_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match=r"sizes up to 64 only; this has 80"):
        import_model(Apply(linalg.inv), (torch.eye(80),))
