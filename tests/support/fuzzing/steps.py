"""Functions of one tensor that random programs are made of; those of other ranks leave it as it is."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as fn

Function = Callable[[torch.Tensor], torch.Tensor]


def _of_rank(least: int, function: Function) -> Function:
    """``function`` on tensors of so many dims or more."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return function(x) if x.dim() >= least else x

    return step


def _on_batches(function: Function) -> Function:
    """``function`` on matrices and batches of them with two columns or more."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return function(x) if x.dim() in (2, 3) and x.shape[-1] > 1 else x

    return step


def _finite(x: torch.Tensor) -> torch.Tensor:
    """What an integer can hold."""
    return torch.nan_to_num(x, 0.0, 3.0, -3.0)


EXACT_STEPS: dict[str, Function] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "relu": torch.relu,
    "relu6": fn.relu6,
    "hardtanh": fn.hardtanh,
    "clamp(min=-1)": lambda x: x.clamp(min=-1),
    "clamp(-1, 2)": lambda x: x.clamp(-1, 2),
    "clamp(max=1)": lambda x: x.clamp(max=1),
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "maximum(x, 0)": lambda x: torch.maximum(x, torch.zeros(())),
    "minimum(x, flip)": _of_rank(1, lambda x: torch.minimum(x, x.flip(0))),
    "isnan": lambda x: torch.isnan(x).float(),
    "isfinite": lambda x: torch.isfinite(x).float(),
    "x == x": lambda x: (x == x).float(),
    "x > 0": lambda x: (x > 0).float(),
    "where(x > 0, x, -1)": lambda x: torch.where(x > 0, x, -1.0),
    "nan_to_num": lambda x: torch.nan_to_num(x, 0.5, 2.0, -2.0),
    "masked_fill(x < 0, 3)": lambda x: x.masked_fill(x < 0, 3.0),
    "x + 1": lambda x: x + 1,
    "x * 2": lambda x: x * 2,
    "fmod(x, 2)": lambda x: torch.fmod(x, 2),
    "remainder(x, 2)": lambda x: torch.remainder(x, 2),
    "x // 0.5": lambda x: x // 0.5,
    "floor_divide(x, -2)": lambda x: torch.div(x, -2, rounding_mode="floor"),
    "leaky_relu": lambda x: fn.leaky_relu(x, 0.5),
    "hardshrink": fn.hardshrink,
    "softshrink": fn.softshrink,
    "threshold": lambda x: fn.threshold(x, 0.5, -1.0),
    "heaviside": lambda x: torch.heaviside(x, torch.tensor(0.5)),
    "unsqueeze(0)": lambda x: x.unsqueeze(0),
    "squeeze": torch.squeeze,
    "flatten": _of_rank(1, lambda x: x.flatten()),
    "transpose": _of_rank(2, lambda x: x.transpose(0, -1)),
    "flip": _of_rank(1, lambda x: x.flip(-1)),
    "roll": _of_rank(1, lambda x: torch.roll(x, 1, 0)),
    "x[..., ::2]": _of_rank(1, lambda x: x[..., ::2]),
    "x[1:]": _of_rank(1, lambda x: x[1:] if x.shape[0] > 1 else x),
    "cat((x, x))": _of_rank(1, lambda x: torch.cat((x, x))),
    "stack": lambda x: torch.stack((x, -x)),
    "pad": _of_rank(1, lambda x: fn.pad(x, (1, 2), value=0.5)),
    "repeat": _of_rank(1, lambda x: x.repeat(2, *[1] * (x.dim() - 1))),
    "tril": _of_rank(2, torch.tril),
    "sum(-1)": lambda x: x.sum(-1),
    "sum(0, keepdim)": _of_rank(1, lambda x: x.sum(0, keepdim=True)),
    "amax(-1)": lambda x: torch.amax(x, -1),
    "amin(0)": _of_rank(1, lambda x: torch.amin(x, 0)),
    "max(-1)": lambda x: x.max(-1).values,
    "argmax(-1)": lambda x: x.argmax(-1).float(),
    "argmin": lambda x: x.argmin().float(),
    "sort": lambda x: torch.sort(x, dim=-1, stable=True).values,
    "argsort": lambda x: torch.argsort(x, dim=-1, stable=True).float(),
    "topk(1)": _of_rank(1, lambda x: x.topk(1).values),
    "cumsum": lambda x: x.cumsum(-1),
    "any": lambda x: (x > 1).any(-1).float(),
    "all": lambda x: (x > -1).all().float(),
    "to int and back": lambda x: _finite(x).to(torch.int32).float(),
    "double": lambda x: (x.double() * 0.5).float(),
    "int arithmetic": lambda x: (_finite(x).long() * 3 // 2 - 1).float(),
    "bool": lambda x: x.bool().float(),
    "count": lambda x: (x != 0).sum(-1).float(),
    "max_pool1d": _on_batches(lambda x: fn.max_pool1d(x, 2)),
}
"""Functions exact on multiples of 1/4."""
SMOOTH_STEPS: dict[str, Function] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": fn.gelu,
    "gelu tanh": lambda x: fn.gelu(x, approximate="tanh"),
    "silu": fn.silu,
    "exp": lambda x: torch.exp(x.clamp(max=3)),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "mean(-1)": lambda x: x.mean(-1),
    "layer_norm": _of_rank(1, lambda x: fn.layer_norm(x, x.shape[-1:])),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "softplus": fn.softplus,
    "elu": fn.elu,
    "mish": fn.mish,
    "hardswish": fn.hardswish,
    "hardsigmoid": fn.hardsigmoid,
    "logsigmoid": fn.logsigmoid,
    "var": lambda x: x.var(-1, correction=0),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "atan": torch.atan,
    "log1p": lambda x: torch.log1p(x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs() + 1),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "div by sum": lambda x: x / (x.abs().sum(-1, keepdim=True) + 1),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, -1),
    "pow 1.5": lambda x: (x.abs() + 1) ** 1.5,
    "x @ x.T": _on_batches(lambda x: x @ x.transpose(-1, -2) / 8),
    "avg_pool1d": _on_batches(lambda x: fn.avg_pool1d(x, 2)),
    "softmin": lambda x: fn.softmin(x, -1),
    "adaptive_avg_pool1d": _on_batches(lambda x: fn.adaptive_avg_pool1d(x, 2)),
    "normalize": lambda x: fn.normalize(x, dim=-1, eps=1.0),
}
"""Functions within a few ulp; nothing discontinuous follows them."""
