"""Entries of `torch.testing`'s database of operators that inference uses, and modules for their samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

LEFT_OUT = re.compile(
    r"(linalg|fft|sparse|special)\.|.*(loss|cross_entropy|kl_div|rand|dropout|stft|jiterator)"
    r"|nn\.functional\.(rrelu|gaussian_nll)|(normal|log_normal|bernoulli|multinomial|cauchy|exponential|geometric|uniform)$"
)
"""Linear algebra, transforms, sparse tensors, special functions, random numbers and losses."""
UNDEFINED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Ops whose elements mean nothing: only shapes and element types are compared."""


def database() -> dict[str, Any]:
    """Entries by name, with the name of the variant behind a dot."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {
        f"{op.name}.{op.variant_test_name}".rstrip("."): op
        for op in op_db
        if torch.float32 in op.supported_dtypes("cpu") and not LEFT_OUT.match(op.name)
    }


class Call(torch.nn.Module):
    """One call of an operator: tensors are inputs of the module, everything else is part of it."""

    def __init__(self, function: Any, leaves: Sequence[Any], structure: Any) -> None:
        super().__init__()
        self.function, self.structure = function, structure
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.function(*args, **kwargs)


def first_sample(op: Any) -> tuple[Call, tuple[torch.Tensor, ...]]:
    """The module of an entry's first f32 sample, and its inputs. The sample is the same in every run."""
    torch.manual_seed(0)
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=False)))
    leaves, structure = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    tensors = tuple(leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor))
    return Call(op.op, leaves, structure), tensors
