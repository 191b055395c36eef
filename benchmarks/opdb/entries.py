"""Entries of `torch.testing`'s database of operators that inference uses, and modules for their samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

LEFT_OUT = re.compile(
    r"(linalg|fft|sparse|special)\.|.*(loss|cross_entropy|kl_div|rand|dropout|stft|jiterator)"
    r"|nn\.functional\.(rrelu|gaussian_nll|fractional_max_pool)|(pca|svd)_lowrank|(normal|log_normal|bernoulli|multinomial|cauchy|exponential|geometric|uniform)$"
)
"""Linear algebra, transforms, sparse tensors, special functions, random numbers and losses."""
NO_INFERENCE = re.compile(
    r"(cholesky(_inverse|_solve)?|geqrf|logdet|lu(_solve|_unpack)?|matrix_exp|ormqr|pinverse|qr|svd"
    r"|triangular_solve|to_sparse|.*_backward(_data)?)$"
)
"""Of the operators here those that inference does not call: linear algebra that is not named ``linalg``,
sparse tensors, gradients."""
UNDEFINED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Ops whose elements mean nothing: only shapes and element types are compared."""


ANY_OF_EQUAL = {"argsort": 0, "kthvalue": 1, "sort": 1, "topk": 1}
"""Ops with a result of indices, by its number, that may be those of any of several equal elements: only their
shapes are compared."""
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64}
"""Element types of samples. All entries have samples in f32; of the others, elementwise ops, reductions and
those that take indices."""
_INDEXING = frozenset({
    "__getitem__", "argsort", "argwhere", "bucketize", "cummax", "cummin", "cumprod", "cumsum",
    "diagonal_scatter", "flip", "gather", "index_add", "index_copy", "index_fill", "index_put",
    "index_reduce", "index_select", "kthvalue", "logcumsumexp", "masked_fill", "masked_scatter", "narrow",
    "nn.functional.embedding", "put", "roll", "scatter", "scatter_add", "scatter_reduce", "searchsorted",
    "select_scatter", "slice_scatter", "sort", "take", "take_along_dim", "topk", "tril", "triu", "where",
})  # fmt: skip


def database(dtype: str = "f32") -> dict[str, Any]:
    """Entries with samples of a type, by name, with the name of the variant behind a dot."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {
        f"{op.name}.{op.variant_test_name}".rstrip("."): op
        for op in op_db
        if DTYPES[dtype] in op.supported_dtypes("cpu")
        and not LEFT_OUT.match(op.name)
        and (dtype == "f32" or _is_elementary(op))
    }


def inference_operators(dtype: str = "f32") -> dict[str, list[str]]:
    """The operators that inference calls, by name, with their entries: an operator's variants together."""
    result: dict[str, list[str]] = {}
    for name, op in database(dtype).items():
        if not NO_INFERENCE.match(op.name):
            result.setdefault(op.name, []).append(name)
    return result


def _is_elementary(op: Any) -> bool:
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

    return isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)) or op.name in _INDEXING


class Call(torch.nn.Module):
    """One call of an operator: tensors are inputs of the module, or buffers where the operator writes into
    them (``updated``), and everything else is part of it."""

    def __init__(
        self, function: Any, leaves: Sequence[Any], structure: Any, updated: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.function, self.structure, self.updated = function, structure, tuple(updated)
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.places = [i for i in tensors if i not in self.updated]
        for place in self.updated:
            self.register_buffer(f"tensor_{place}", leaves[place].detach().clone())

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        for place in self.updated:
            leaves[place] = getattr(self, f"tensor_{place}")
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.function(*args, **kwargs)


def first_sample(op: Any, dtype: torch.dtype = torch.float32) -> tuple[Call, tuple[torch.Tensor, ...]]:
    """The module of an entry's first sample of a type, and its inputs. It is the same in every run."""
    torch.manual_seed(0)
    sample = next(iter(op.sample_inputs("cpu", dtype, requires_grad=False)))
    leaves, structure = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    leaves = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    call = Call(op.op, leaves, structure, _updated(op.op, leaves, structure))
    return call, tuple(leaves[place] for place in call.places)


def _updated(function: Any, leaves: Sequence[Any], structure: Any) -> list[int]:
    """The places of tensors that the operator writes into, such as running statistics."""
    copies = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(copies, structure)
    function(*args, **kwargs)
    return [
        place
        for place, (copy, leaf) in enumerate(zip(copies, leaves, strict=True))
        if isinstance(copy, torch.Tensor) and not _same(copy, leaf)
    ]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
