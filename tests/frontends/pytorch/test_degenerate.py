"""Tensors without elements, tensors without dims: sizes at which torch-mlir crashes or does not end."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from support.frontends.torch_import import as_module, check, import_and_check_all
from torch import nn

from mansard.frontends import import_model

torch.manual_seed(0)
randn = torch.randn
NO_ROWS = torch.zeros(0, dtype=torch.long)

EMPTY: dict[str, tuple[Any, ...]] = {
    "flatten": (lambda a: a.flatten(), randn(3, 0, 4)),
    "flatten some dims": (lambda a: a.flatten(1) + 1, randn(3, 0, 4)),
    "view": (lambda a: a.view(0, 5), randn(3, 0, 4)),
    "a sum of a view": (lambda a: a.view(4, -1, 3).sum(1), randn(3, 0, 4)),
    "integers": (lambda a: a.flatten() * 2, torch.zeros(2, 0, dtype=torch.int64)),
    "bytes": (lambda a: a.flatten(), torch.zeros(2, 0, dtype=torch.uint8)),
    "booleans": (lambda a: a.flatten(), torch.zeros(2, 0, dtype=torch.bool)),
    "bfloat16": (lambda a: a.flatten(), torch.zeros(2, 0, dtype=torch.bfloat16)),
    "products over nothing": (lambda a, b: (a @ b, a[0] @ b), randn(5, 5, 0), randn(0, 5)),
    "bilinear": (nn.Bilinear(3, 4, 5), randn(0, 3), randn(0, 4)),
    "unfold": (lambda a: F.unfold(a, (2, 1)), randn(0, 1, 5, 5)),
    "group_norm": (lambda a: F.group_norm(a, 1), randn(0, 2)),
    "convolution": (F.conv2d, randn(0, 3, 5, 5), randn(2, 3, 3, 3)),
    "attention": (lambda a: F.scaled_dot_product_attention(a, a, a), randn(1, 2, 0, 4)),
    "any and all": (lambda a: ((a > 0).any(), (a > 0).all()), randn(0, 3)),
    "cat": (lambda a, b: torch.cat([a, b]), randn(0, 4), randn(2, 4)),
    "pad": (lambda a: F.pad(a, (1, 1)), randn(3, 0)),
    "index": (lambda a, i: a[i], randn(4, 3), NO_ROWS),
    "index_put": (lambda a, i, v: a.index_put((i,), v), randn(4, 3), NO_ROWS, randn(0, 3)),
    "scatter": (lambda a, i, v: a.scatter(0, i, v), randn(4, 3), NO_ROWS.view(0, 1), randn(0, 3)),
    "sort": (lambda a: a.sort(1), randn(0, 3)),
    "cumsum": (lambda a: a.cumsum(0), randn(0, 2)),
}
NUMBER: dict[str, Any] = {
    "softmax": lambda a: a.softmax(-1),
    "log_softmax": lambda a: a.log_softmax(0),
    "softmax as f64": lambda a: a.softmax(0, dtype=torch.float64),
    "cumsum": lambda a: (a.cumsum(0), a.cumprod(-1), a.logcumsumexp(0)),
    "reductions": lambda a: (a.amax(0), a.amin(-1), a.sum(0), a.mean(0), a.prod(0), a.logsumexp(0)),
    "argmax": lambda a: (a.argmax(), a.argmin(0)),
    "any and all": lambda a: ((a > 0).any(0), (a < 0).all(0)),
    "var": lambda a: (a.var(0, correction=0), a.std(correction=0)),
    "gather": lambda a: (a.gather(0, torch.tensor(0)), a.index_select(0, torch.tensor([0]))),
    "scatter": lambda a: (a.scatter(0, torch.tensor(0), 2.0), a.index_fill(0, torch.tensor(0), 3.0)),
    "sort": lambda a: (a.sort(0), a.topk(1, 0), a.flip(())),
    "repeats": lambda a: (a.expand(3), a.repeat(3), a.repeat_interleave(2), a.flatten()),
}


def test_tensors_without_elements() -> None:
    import_and_check_all(EMPTY)


def test_tensors_without_dims() -> None:
    import_and_check_all({name: (function, torch.tensor(1.5)) for name, function in NUMBER.items()})


def test_softmax_of_a_number_that_is_not_finite() -> None:
    module = as_module(lambda a: (a.softmax(0), a.log_softmax(0)))
    graph = import_model(module, torch.tensor(1.5))
    for value in (torch.inf, -torch.inf, torch.nan):
        check(graph, module, (torch.tensor(value),))


def test_bilinear_and_unfold() -> None:
    import_and_check_all({
        "layer": (nn.Bilinear(3, 4, 5), randn(2, 6, 3), randn(2, 6, 4)),
        "function": (F.bilinear, randn(3), randn(4), randn(5, 3, 4)),
        "unfold": (
            lambda a: F.unfold(a, (2, 3), padding=1, stride=2, dilation=(1, 2)), randn(2, 3, 9, 8)),
        "fold": (lambda a: F.fold(F.unfold(a, 2), (9, 8), 2), randn(3, 9, 8)),
    })  # fmt: skip
