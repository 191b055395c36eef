"""Medians, modes, histograms, searches, and writes and reductions at indices, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.frontends.torch_import import import_and_check

torch.manual_seed(3)
NAN = torch.nan
LINES = torch.tensor([[3.0, 1, 2, 2], [5, NAN, 4, 1], [NAN, NAN, 1, 2], [7, 7, 8, 8]])
WHOLE = torch.randint(0, 4, (3, 7))
SORTED = torch.sort(torch.randn(3, 9)).values


@pytest.mark.parametrize(
    "function",
    [
        torch.median, torch.nanmedian, lambda x: torch.median(x, 0).values,
        lambda x: torch.nanmedian(x, 1, keepdim=True).values,
    ],
)  # fmt: skip
def test_medians(function: Callable[..., Any]) -> None:
    import_and_check(function, LINES)
    import_and_check(lambda x: torch.median(x, 1).values, WHOLE)


def test_modes() -> None:
    import_and_check(lambda x: torch.mode(x, 1).values, WHOLE)
    import_and_check(lambda x: torch.mode(x, 0, keepdim=True).values, WHOLE.float())
    import_and_check(torch.mode, torch.tensor(2.0))


def test_histograms() -> None:
    x = torch.tensor([0.0, 0.1, 0.5, 0.99, 1.0, 2.0, -1.0])
    import_and_check(lambda x: (torch.histc(x, 4, 0, 1), torch.histc(x, 5), torch.histc(x * 0, 3)), x)
    import_and_check(lambda x: tuple(torch.histogram(x, 4, range=(0.0, 1.0), weight=x, density=True)), x)
    import_and_check(lambda x, e: tuple(torch.histogram(x, e)), x, torch.tensor([0.0, 0.3, 1.0]))


@pytest.mark.parametrize("right", [False, True])
def test_searches(right: bool) -> None:
    values = torch.cat([SORTED[:, ::3], torch.tensor([[NAN, 9.0]] * 3)], 1)
    import_and_check(lambda s, v: torch.searchsorted(s, v, right=right, out_int32=True), SORTED, values)
    import_and_check(lambda s: torch.searchsorted(s, 0.5, right=right), SORTED[0])
    order = torch.tensor([2, 0, 1])
    import_and_check(
        lambda s: torch.searchsorted(s, 3.0, sorter=order, right=right), torch.tensor([2.0, 3.0, 1.0])
    )


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_segments(reduce: str) -> None:
    lengths = torch.tensor([2, 0, 3])
    import_and_check(
        lambda x, n: torch.segment_reduce(x, reduce, lengths=n, axis=0, initial=1.0),
        torch.randn(5, 3),
        lengths,
    )


@pytest.mark.parametrize(
    ("reduce", "include_self"), [("prod", True), ("mean", False), ("mean", True), ("amax", False)]
)
@pytest.mark.filterwarnings("ignore:.*beta")
def test_reductions_at_indices(reduce: str, include_self: bool) -> None:
    index, source = torch.tensor([0, 4, 0, 3]), torch.randn(4, 2)
    import_and_check(
        lambda x, i, s: torch.index_reduce(x, 0, i, s, reduce, include_self=include_self),
        torch.randn(5, 2), index, source,
    )  # fmt: skip
    places = torch.tensor([[0, 1], [0, 4], [3, 1]])
    import_and_check(
        lambda x, i, s: torch.scatter_reduce(x, 0, i, s, reduce, include_self=include_self),
        torch.randn(5, 2), places, source,
    )  # fmt: skip


def test_writes_at_places() -> None:
    x, source = torch.randn(3, 4), torch.randn(2)
    index = torch.tensor([5, -1])
    import_and_check(lambda x, i, s: (torch.put(x, i, s), x.put(i, s, accumulate=True)), x, index, source)
    import_and_check(
        lambda x, s: (torch.diagonal_scatter(x, s, -1), torch.diagonal_scatter(x, s, 2, 0, 1)), x, source
    )
    import_and_check(lambda x, s: torch.as_strided_scatter(x, s, (2,), (5,), 1), x, source)


def test_copies_of_views() -> None:
    aten = torch.ops.aten
    import_and_check(
        lambda x: (
            aten.permute_copy(x, [1, 0]), aten.view_copy(x, [2, 6]), *aten.unbind_copy(x, 0),
            torch.narrow_copy(x, 1, 1, 2), aten.diagonal_copy(x), aten.t_copy(x), torch.block_diag(x, x),
        ),
        torch.randn(3, 4),
    )  # fmt: skip
    import_and_check(
        lambda x: (torch.combinations(x), torch.combinations(x, 3), torch.nn.functional.pdist(x.view(2, 2))),
        torch.randn(4),
    )
