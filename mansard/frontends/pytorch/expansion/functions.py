"""Functions of torch that torch.export cannot trace, since they read tensors, as functions that it can."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mansard.frontends.pytorch.expansion.recurrent_ops import DEFERRED


class TraceableFunctions(TorchFunctionMode):  # type: ignore[misc]
    """Replaces them while a module is exported."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The function, or its replacement."""
        return _REPLACED.get(function, function)(*args, **(kwargs or {}))


def _equal(a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.shape != b.shape:
        return False
    return (a == b).all().item()


def _all_close(
    a: torch.Tensor, b: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    return torch.isclose(a, b, rtol, atol, equal_nan).all().item()


def _covariance(
    x: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """PyTorch's, without its checks of the weights' contents."""
    dtype = x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.get_default_dtype()
    rows = (x.reshape(1, -1) if x.dim() < 2 else x).to(dtype)
    weights = None if fweights is None else fweights.to(dtype)
    if aweights is not None:
        weights = aweights.to(dtype) if weights is None else weights * aweights
    if weights is None:
        total: Any = rows.shape[1]
        mean = rows.mean(1, keepdim=True)
    else:
        total = weights.sum()
        mean = (rows * weights).sum(1, keepdim=True) / total
    if weights is None or correction == 0:
        divisor: Any = total - correction
    elif aweights is None:
        divisor = total - correction
    else:
        divisor = total - correction * (weights * aweights).sum() / total
    if isinstance(divisor, torch.Tensor):
        divisor = divisor.clamp(min=0)
    elif isinstance(divisor, int):
        divisor = torch.full((), float(max(0, divisor)), dtype=dtype)
    centred = rows - mean
    weighted = centred if weights is None else centred * weights
    product = weighted @ centred.mT.conj()
    return (product / divisor).squeeze()


def _correlation(x: torch.Tensor) -> torch.Tensor:
    covariance = _covariance(x)
    if covariance.dim() == 0:
        return covariance / covariance
    deviation = covariance.diagonal().sqrt()
    quotient = covariance / deviation.unsqueeze(1) / deviation.unsqueeze(0)
    return quotient if quotient.is_complex() else quotient.clamp(-1, 1)


def _combinations(x: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(x.shape[0]), r))
    index = torch.tensor(places, dtype=torch.int64, device=x.device).reshape(len(places), r)
    return x[index] if r else x.new_empty((0,))


_REPLACED: dict[Any, Callable[..., Any]] = {
    **DEFERRED,
    torch.equal: _equal,
    torch.Tensor.equal: _equal,
    torch.allclose: _all_close,
    torch.Tensor.allclose: _all_close,
    torch.cov: _covariance,
    torch.Tensor.cov: _covariance,
    torch.combinations: _combinations,
    torch.corrcoef: _correlation,
    torch.Tensor.corrcoef: _correlation,
}
