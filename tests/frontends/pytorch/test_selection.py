"""Medians, modes, histograms, searches, and writes and reductions at indices, against PyTorch."""

from __future__ import annotations

import pytest
import torch
from support.frontends.torch_import import import_and_check_all

torch.manual_seed(3)
NAN = torch.nan
LINES = torch.tensor([[3.0, 1, 2, 2], [5, NAN, 4, 1], [NAN, NAN, 1, 2], [7, 7, 8, 8]])
WHOLE = torch.randint(0, 4, (3, 7))
SORTED = torch.sort(torch.randn(3, 9)).values


def test_medians() -> None:
    import_and_check_all({
        "median": (torch.median, LINES),
        "nanmedian": (torch.nanmedian, LINES),
        "median of a dim": (lambda x: torch.median(x, 0).values, LINES),
        "nanmedian of a dim": (lambda x: torch.nanmedian(x, 1, keepdim=True).values, LINES),
        "integers": (lambda x: torch.median(x, 1).values, WHOLE),
    })  # fmt: skip


def test_modes() -> None:
    import_and_check_all({
        "integers": (lambda x: torch.mode(x, 1).values, WHOLE),
        "floats": (lambda x: torch.mode(x, 0, keepdim=True).values, WHOLE.float()),
        "a number": (torch.mode, torch.tensor(2.0)),
    })  # fmt: skip


def test_histograms() -> None:
    x = torch.tensor([0.0, 0.1, 0.5, 0.99, 1.0, 2.0, -1.0])
    import_and_check_all({
        "histc": (lambda x: (torch.histc(x, 4, 0, 1), torch.histc(x, 5), torch.histc(x * 0, 3)), x),
        "weights": (lambda x: tuple(torch.histogram(x, 4, range=(0.0, 1.0), weight=x, density=True)), x),
        "edges": (lambda x, e: tuple(torch.histogram(x, e)), x, torch.tensor([0.0, 0.3, 1.0])),
    })  # fmt: skip


def test_searches() -> None:
    values = torch.cat([SORTED[:, ::3], torch.tensor([[NAN, 9.0]] * 3)], 1)
    order, unordered = torch.tensor([2, 0, 1]), torch.tensor([2.0, 3.0, 1.0])

    def search(rows: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for right in (False, True):
            results.append(torch.searchsorted(rows, values, right=right, out_int32=True))
            results.append(torch.searchsorted(rows[0], 0.5, right=right))
            results.append(torch.searchsorted(x, 3.0, sorter=order, right=right))
        return results

    import_and_check_all({"search": (search, SORTED, values, unordered)})


def test_segments() -> None:
    def segments(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        reductions = ("sum", "mean", "max")
        return [torch.segment_reduce(x, name, lengths=n, axis=0, initial=1.0) for name in reductions]

    import_and_check_all({"segments": (segments, torch.randn(5, 3), torch.tensor([2, 0, 3]))})


@pytest.mark.filterwarnings("ignore:.*beta")
def test_reductions_at_indices() -> None:
    index, source = torch.tensor([0, 4, 0, 3]), torch.randn(4, 2)
    places = torch.tensor([[0, 1], [0, 4], [3, 1]])
    kinds = [("prod", True), ("mean", False), ("mean", True), ("amax", False)]
    import_and_check_all({
        "index_reduce": (
            lambda x, i, s: [torch.index_reduce(x, 0, i, s, kind, include_self=own) for kind, own in kinds],
            torch.randn(5, 2), index, source),
        "scatter_reduce": (
            lambda x, i, s: [torch.scatter_reduce(x, 0, i, s, kind, include_self=own) for kind, own in kinds],
            torch.randn(5, 2), places, source),
    })  # fmt: skip


def test_writes_at_places() -> None:
    x, source = torch.randn(3, 4), torch.randn(2)
    index = torch.tensor([5, -1])
    import_and_check_all({
        "put": (lambda x, i, s: (torch.put(x, i, s), x.put(i, s, accumulate=True)), x, index, source),
        "diagonals": (
            lambda x, s: (torch.diagonal_scatter(x, s, -1), torch.diagonal_scatter(x, s, 2, 0, 1)), x,
            source),
        "strides": (lambda x, s: torch.as_strided_scatter(x, s, (2,), (5,), 1), x, source),
    })  # fmt: skip


def test_copies_of_views() -> None:
    aten = torch.ops.aten
    import_and_check_all({
        "copies": (
            lambda x: (
                aten.permute_copy(x, [1, 0]), aten.view_copy(x, [2, 6]), *aten.unbind_copy(x, 0),
                torch.narrow_copy(x, 1, 1, 2), aten.diagonal_copy(x), aten.t_copy(x), torch.block_diag(x, x)),
            torch.randn(3, 4)),
        "combinations": (
            lambda x: (
                torch.combinations(x), torch.combinations(x, 3),
                torch.nn.functional.pdist(x.view(2, 2))),
            torch.randn(4)),
    })  # fmt: skip
