"""Decompositions of linear algebra on small matrices: factorisations, solutions, determinants, exponentials.

Every rule is unrolled over the columns of a matrix, with batches in the leading dims. Algorithms are those of
LAPACK without blocks (G. Golub and C. Van Loan, "Matrix Computations", chapters 3 to 5), so that signs and
pivots are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from mansard.errors import UnsupportedOpError
from mansard.frontends.pytorch.locations import current_location

Rule = Callable[..., Any]
Tensors = tuple[torch.Tensor, ...]
LARGEST = 64
"""Columns up to which a rule is unrolled."""


def matrix_table() -> dict[Any, Rule]:
    """A rule for each op."""
    aten = torch.ops.aten
    return {
        aten.linalg_inv.default: lambda a: _regular("linalg.inv", *_inverse(a)),
        aten.inverse.default: lambda a: _regular("linalg.inv", *_inverse(a)),
        aten.linalg_solve.default: lambda a, b, *, left=True: _regular(
            "linalg.solve", *_solve(a, b, left=left)[::3]
        ),
        aten.linalg_lu_factor.default: lambda a, *, pivot=True: _lu(a, pivot)[:2],
        aten.linalg_cholesky.default: lambda a, *, upper=False: _regular(
            "linalg.cholesky", *_cholesky_ex(a, upper=upper)
        ),
        aten.cholesky.default: lambda a, upper=False: _cholesky(a, upper=upper),
        aten.linalg_cholesky_ex.default: _cholesky_ex,
        aten.cholesky_solve.default: _cholesky_solve,
        aten.cholesky_inverse.default: _cholesky_inverse,
        aten.linalg_lu_factor_ex.default: lambda a, *, pivot=True, check_errors=False: _lu(a, pivot),
        aten.linalg_lu_solve.default: _lu_solve,
        aten.lu_unpack.default: _lu_unpack,
        aten.linalg_lu.default: lambda a, *, pivot=True: _lu_unpack(*_lu(a, pivot)[:2]),
        aten.linalg_inv_ex.default: _inverse,
        aten._linalg_solve_ex.default: _solve,
        aten._linalg_det.default: _determinant,
        aten.linalg_det.default: lambda a: _determinant(a)[0],
        aten.linalg_slogdet.default: lambda a: _log_determinant(a)[:2],
        aten._linalg_slogdet.default: _log_determinant,
        aten.triangular_solve.default: _triangular_solve,
        aten.linalg_solve_triangular.default: _solve_triangular,
        aten.geqrf.default: _reflectors,
        aten.linalg_qr.default: _qr,
        aten.linalg_householder_product.default: _product_of_reflectors,
        aten.ormqr.default: _apply_reflectors,
        aten.linalg_matrix_exp.default: _exponential,
    }


def _columns(op: str, a: torch.Tensor) -> int:
    """How many columns are eliminated; raises UnsupportedOpError for more than are unrolled."""
    count = min(a.shape[-2:])
    if not isinstance(count, int) or count > LARGEST:
        raise UnsupportedOpError(
            f"aten.{op}",
            current_location(),
            f"matrices of static sizes up to {LARGEST} only; this has {count}",
        )
    return count


def _places(a: torch.Tensor) -> Tensors:
    """The numbers of rows (…, rows, 1) and of columns (…, 1, columns)."""
    rows = torch.arange(a.shape[-2], device=a.device).unsqueeze(-1)
    return rows, torch.arange(a.shape[-1], device=a.device).unsqueeze(0)


def _regular(name: str, result: torch.Tensor, info: torch.Tensor) -> torch.Tensor:
    """The result, with the assertion that the factorisation has succeeded, as PyTorch has it."""
    message = f"{name}: the matrix is singular, or not positive definite"
    torch.ops.aten._assert_async.msg((info == 0).all(), message)
    return result


def _no_error(a: torch.Tensor) -> torch.Tensor:
    return torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


# Triangular systems ---------------------------------------------------------------------------------------
def _substitute(a: torch.Tensor, b: torch.Tensor, *, upper: bool, unit: bool) -> torch.Tensor:
    """The solution of ``a @ x = b`` for a triangular ``a``; the other triangle is not read."""
    count = _columns("linalg_solve_triangular", a)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rest = b.expand(*batch, *b.shape[-2:])
    rows = torch.arange(count, device=a.device)
    solved: list[torch.Tensor] = []
    order = list(reversed(range(count))) if upper else list(range(count))
    for k in order:
        row = rest.select(-2, k)
        if not unit:
            row = row / a[..., k, k].unsqueeze(-1)
        solved.append(row)
        left = torch.where(rows < k if upper else rows > k, a.select(-1, k), 0)
        rest = rest - left.unsqueeze(-1) * row.unsqueeze(-2)
    if not solved:
        return rest.clone()
    return torch.stack(solved[::-1] if upper else solved, -2)


def _solve_triangular(
    a: torch.Tensor, b: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    if left:
        return _substitute(a, b, upper=upper, unit=unitriangular)
    return _substitute(a.mT, b.mT, upper=not upper, unit=unitriangular).mT.clone()


def _triangular_solve(
    b: torch.Tensor, a: torch.Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Tensors:
    solution = _substitute(a.mT if transpose else a, b, upper=upper != transpose, unit=unitriangular)
    batch = solution.shape[:-2]
    return solution, a.expand(*batch, *a.shape[-2:]).clone()


# Cholesky -------------------------------------------------------------------------------------------------
def _cholesky(a: torch.Tensor, *, upper: bool) -> torch.Tensor:
    """Column by column; NaN where the matrix is not positive definite, which is an error in PyTorch."""
    rest = a.mT if upper else a
    rows = torch.arange(a.shape[-1], device=a.device)
    columns: list[torch.Tensor] = []
    for k in range(_columns("linalg_cholesky", a)):
        column = torch.where(rows >= k, rest.select(-1, k), 0) / torch.sqrt(rest[..., k, k]).unsqueeze(-1)
        columns.append(column)
        rest = rest - column.unsqueeze(-1) * column.unsqueeze(-2)
    if not columns:
        return a.clone()
    return torch.stack(columns, -2 if upper else -1)


def _cholesky_ex(a: torch.Tensor, *, upper: bool = False, check_errors: bool = False) -> Tensors:
    factor = _cholesky(a, upper=upper)
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    numbers = torch.arange(1, a.shape[-1] + 1, dtype=torch.int32, device=a.device)
    wrong = torch.where(diagonal > 0, a.shape[-1] + 1, numbers)
    if not a.shape[-1]:
        return factor, _no_error(a)
    first = wrong.amin(-1)
    return factor, torch.where(first > a.shape[-1], 0, first).to(torch.int32)


def _cholesky_solve(b: torch.Tensor, factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    lower = factor.mT if upper else factor
    return _substitute(lower.mT, _substitute(lower, b, upper=False, unit=False), upper=True, unit=False)


def _cholesky_inverse(factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    return _cholesky_solve(_identity(factor), factor, upper)


def _identity(a: torch.Tensor) -> torch.Tensor:
    rows, columns = _places(a)
    return (rows == columns).to(a.dtype).expand(a.shape).clone()


# LU -------------------------------------------------------------------------------------------------------
def _lu(a: torch.Tensor, pivot: bool = True) -> Tensors:
    """Both factors in one matrix, the pivots counted from 1, and the first column without a pivot."""
    rows, columns = _places(a)
    numbers = torch.arange(a.shape[-2], device=a.device)
    info = _no_error(a)
    pivots: list[torch.Tensor] = []
    for k in range(_columns("linalg_lu", a)):
        if pivot:
            size = torch.where(numbers >= k, a.select(-1, k).abs(), -1)
            place = size.argmax(-1, keepdim=True)
            order = torch.where(numbers == k, place, torch.where(numbers == place, k, numbers))
            a = a.gather(-2, order.unsqueeze(-1).expand(a.shape))
        else:
            place = torch.full((*a.shape[:-2], 1), k, dtype=torch.int64, device=a.device)
        pivots.append(place + 1)
        corner = a[..., k, k].unsqueeze(-1)
        info = torch.where((info == 0) & (corner.squeeze(-1) == 0), k + 1, info)
        factor = torch.where(numbers > k, a.select(-1, k) / torch.where(corner == 0, 1, corner), 0)
        row = torch.where(columns.squeeze(0) > k, a.select(-2, k), 0)
        a = torch.where((rows > k) & (columns == k), factor.unsqueeze(-1), a)
        a = a - factor.unsqueeze(-1) * row.unsqueeze(-2)
    if not pivots:
        return a.clone(), torch.zeros((*a.shape[:-2], 0), dtype=torch.int32, device=a.device), info
    return a, torch.cat(pivots, -1).to(torch.int32), info


def _order(pivots: torch.Tensor, rows: int, *, inverse: bool = False) -> torch.Tensor:
    """The rows' order after their exchanges, or the order that undoes them."""
    numbers = torch.arange(rows, device=pivots.device)
    order = numbers.expand(*pivots.shape[:-1], rows)
    count = pivots.shape[-1]
    for k in reversed(range(count)) if inverse else range(count):
        place = pivots[..., k : k + 1].to(torch.int64) - 1
        kept, moved = order[..., k : k + 1], order.gather(-1, place)
        order = torch.where(numbers == k, moved, torch.where(numbers == place, kept, order))
    return order


def _lu_solve(
    lu: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, *, left: bool = True, adjoint: bool = False
) -> torch.Tensor:
    if not left:  # x @ a = b, so a^T @ x^T = b^T
        return _lu_solve(lu, pivots, b.mT, adjoint=not adjoint).mT.clone()
    order = _order(pivots, lu.shape[-2], inverse=adjoint)
    batch = torch.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    order = order.expand(*batch, lu.shape[-2]).unsqueeze(-1)
    b = b.expand(*batch, *b.shape[-2:])
    if not adjoint:
        moved = b.gather(-2, order.expand(b.shape))
        return _substitute(lu, _substitute(lu, moved, upper=False, unit=True), upper=True, unit=False)
    solved = _substitute(lu.mT, _substitute(lu.mT, b, upper=False, unit=False), upper=True, unit=True)
    return solved.gather(-2, order.expand(solved.shape))


def _lu_unpack(
    lu: torch.Tensor, pivots: torch.Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> Tensors:
    count = min(lu.shape[-2:])
    nothing = lu.new_empty((0,))
    permutation = lower = upper = nothing
    if unpack_pivots:
        order = _order(pivots, lu.shape[-2])
        rows = torch.arange(lu.shape[-2], device=lu.device).unsqueeze(-1)
        permutation = (order.unsqueeze(-2) == rows).to(lu.dtype)
    if unpack_data:
        lower = lu[..., :, :count].tril(-1)
        lower = lower + _identity(lower)
        upper = lu[..., :count, :].triu()
    return permutation, lower, upper


def _solve(a: torch.Tensor, b: torch.Tensor, *, left: bool = True, check_errors: bool = False) -> Tensors:
    lu, pivots, info = _lu(a)
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    solution = _lu_solve(lu, pivots, right, left=left)
    return (solution.squeeze(-1) if vector else solution), lu, pivots, info


def _inverse(a: torch.Tensor, *, check_errors: bool = False) -> Tensors:
    lu, pivots, info = _lu(a)
    return _lu_solve(lu, pivots, _identity(a)), info


def _sign_of_exchanges(pivots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    numbers = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)
    odd = (pivots != numbers).to(torch.int64).sum(-1) % 2
    return (1 - 2 * odd).to(dtype)


def _determinant(a: torch.Tensor) -> Tensors:
    lu, pivots, _ = _lu(a)
    if not a.shape[-1]:
        return a.new_ones(a.shape[:-2]), lu, pivots
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    return diagonal.prod(-1) * _sign_of_exchanges(pivots, a.dtype), lu, pivots


def _log_determinant(a: torch.Tensor) -> Tensors:
    lu, pivots, _ = _lu(a)
    if not a.shape[-1]:
        return a.new_ones(a.shape[:-2]), a.new_zeros(a.shape[:-2]), lu, pivots
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    sign = diagonal.sign().prod(-1) * _sign_of_exchanges(pivots, a.dtype)
    return sign, diagonal.abs().log().sum(-1), lu, pivots


# QR -------------------------------------------------------------------------------------------------------
def _reflectors(a: torch.Tensor) -> Tensors:
    """Householder's reflections below the diagonal of R, and their factors."""
    rows, columns = _places(a)
    numbers = rows.squeeze(-1)
    factors: list[torch.Tensor] = []
    for k in range(_columns("geqrf", a)):
        column = a.select(-1, k)
        head = a[..., k, k].unsqueeze(-1)
        tail = torch.where(numbers > k, column, 0)
        below = (tail * tail).sum(-1, keepdim=True)
        length = torch.sqrt(head * head + below)
        beta = torch.where(head < 0, length, -length)
        nothing = below == 0
        safe = torch.where(nothing, 1, beta)
        factor = torch.where(nothing, 0, (safe - head) / safe)
        direction = tail / torch.where(nothing, 1, head - beta)
        vector = torch.where(numbers == k, 1, direction)
        products = (vector.unsqueeze(-1) * a).sum(-2, keepdim=True)
        changed = a - factor.unsqueeze(-1) * vector.unsqueeze(-1) * products
        a = torch.where(columns >= k, changed, a)
        a = torch.where((rows > k) & (columns == k), direction.unsqueeze(-1), a)
        factors.append(factor)
    if not factors:
        return a.clone(), a.new_zeros((*a.shape[:-2], 0))
    return a, torch.cat(factors, -1)


def _reflected(a: torch.Tensor, factors: torch.Tensor, c: torch.Tensor, *, transpose: bool) -> torch.Tensor:
    """``Q @ c`` or its transpose's product, for the Q of reflections."""
    numbers = torch.arange(a.shape[-2], device=a.device)
    count = factors.shape[-1]
    for k in range(count) if transpose else reversed(range(count)):
        vector = torch.where(numbers == k, 1, torch.where(numbers > k, a.select(-1, k), 0)).unsqueeze(-1)
        c = c - factors[..., k : k + 1].unsqueeze(-1) * vector * (vector * c).sum(-2, keepdim=True)
    return c.clone()


def _product_of_reflectors(a: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    return _reflected(a, factors, _identity(a), transpose=False)


def _apply_reflectors(
    a: torch.Tensor, factors: torch.Tensor, c: torch.Tensor, left: bool = True, transpose: bool = False
) -> torch.Tensor:
    if left:
        return _reflected(a, factors, c, transpose=transpose)
    return _reflected(a, factors, c.mT, transpose=not transpose).mT.clone()


def _qr(a: torch.Tensor, mode: str = "reduced") -> Tensors:
    packed, factors = _reflectors(a)
    count = min(a.shape[-2:])
    if mode == "r":
        return a.new_empty((0,)), packed[..., :count, :].triu()
    width = a.shape[-2] if mode == "complete" else count
    square = _identity(a.new_empty((*a.shape[:-1], width)))
    return _reflected(packed, factors, square, transpose=False), packed[..., :width, :].triu()


# Exponential ----------------------------------------------------------------------------------------------
_SQUARINGS = 16


def _exponential(a: torch.Tensor) -> torch.Tensor:
    """Taylor's polynomial of the matrix divided by a power of two, then squared as often. Right up to a norm
    of 2**16."""
    wide = a if a.dtype is torch.float64 else a.float()
    norm = wide.abs().sum(-2).amax(-1) if a.shape[-1] else wide.new_zeros(a.shape[:-2])
    count = torch.ceil(torch.log2(norm.clamp(min=1.0))).clamp(max=_SQUARINGS)
    scaled = wide * torch.exp2(-count).unsqueeze(-1).unsqueeze(-1)
    degree = 18 if a.dtype is torch.float64 else 12
    unit = _identity(wide)
    result = unit / math.factorial(degree)
    for k in reversed(range(degree)):
        result = scaled @ result + unit / math.factorial(k)
    for k in range(_SQUARINGS):
        wanted = (count > k).unsqueeze(-1).unsqueeze(-1)
        result = torch.where(wanted, result @ result, result)
    return result.to(a.dtype)
