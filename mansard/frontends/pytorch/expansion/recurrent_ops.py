"""Ops that stand for PyTorch's recurrent networks while a model is exported and decomposed.

PyTorch finds the shapes of ``torch.lstm`` and its like by executing every step, on tensors
without data; these ops state them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_PARAMETERS = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, "
    "bool batch_first"
)
_NAMES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_LIBRARY = torch.library.Library("mansard", "FRAGMENT")
_LIBRARY.define(f"lstm(Tensor input, Tensor[] hx, {_PARAMETERS}) -> (Tensor, Tensor, Tensor)")
for _name in _NAMES[1:]:
    _LIBRARY.define(f"{_name}(Tensor input, Tensor hx, {_PARAMETERS}) -> (Tensor, Tensor)")


def _shapes(x: torch.Tensor, hx: Any, *parameters: Any) -> tuple[torch.Tensor, ...]:
    states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    bidirectional = parameters[5]
    width = states[0].shape[2] * (2 if bidirectional else 1)
    return (x.new_empty((x.shape[0], x.shape[1], width)), *(s.new_empty(s.shape) for s in states))


for _name in _NAMES:
    torch.library.register_fake(f"mansard::{_name}", _shapes, lib=_LIBRARY)


def _deferred(function: Callable[..., Any], op: Any) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        sequence, *_ = (
            args  # of (input, hx, params, ...); packed ones are (data, batch_sizes, hx, params, ...)
        )
        whole = sequence.dim() == 3 and isinstance(args[2], (list, tuple))
        return op(*args) if whole else function(*args)

    return call


OPS: dict[str, Any] = {name: getattr(torch.ops.mansard, name).default for name in _NAMES}
"""By the name of the function in torch."""
DEFERRED = {
    function: _deferred(function, OPS[name]) for name in _NAMES for function in [getattr(torch, name)]
}
"""The functions of torch, each with what calls its op; packed sequences are left to the function."""
