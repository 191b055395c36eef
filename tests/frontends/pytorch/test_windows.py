"""Maxima of windows with their positions, antialiased resizing and 3-d sampling, against PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.frontends.torch_import import Apply, import_and_check

from mansard.frontends import import_model

torch.manual_seed(7)
INF = torch.inf


DILATED = {"dilation": 2, "ceil_mode": True, "stride": 3}


@pytest.mark.parametrize(
    ("kernel", "options", "ranks"),
    [
        (3, {"stride": 2, "padding": 1}, (1, 2, 3)),
        (2, DILATED, (2,)),
        # The options and the ranks are each among those above.
        pytest.param(2, DILATED, (1, 3), marks=pytest.mark.slow),
    ],
)
def test_positions_of_maxima(kernel: int, options: dict[str, int], ranks: tuple[int, ...]) -> None:
    x = torch.randint(0, 4, (2, 2, 7, 9)).float()
    x[0, 0, 2, 3], x[0, 1] = torch.nan, -INF
    pools = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}

    def pooled(x: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        images = {1: x[0], 2: x, 3: x.view(1, 1, 4, 7, 9)}
        return [pools[rank](images[rank], kernel, return_indices=True, **options) for rank in ranks]

    import_and_check(pooled, x)


def test_maxima_without_positions_stay_one_window_op() -> None:
    graph = import_model(Apply(lambda x: F.max_pool2d(x, 2)), (torch.randn(1, 1, 8, 8),))
    assert len(graph.ops) < 4


@pytest.mark.parametrize(
    ("mode", "corners"),
    [
        ("bilinear", (False, True)),
        ("bicubic", (True, False)),
        # Sizes, filters and corners are independent: two of the three at a time are above.
        pytest.param("bilinear", (True, False), marks=pytest.mark.slow),
        pytest.param("bicubic", (False, True), marks=pytest.mark.slow),
    ],
)
def test_antialiased_resizing(mode: str, corners: tuple[bool, bool]) -> None:
    def resized(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            F.interpolate(x, size, mode=mode, antialias=True, align_corners=aligned)
            for size, aligned in zip(((4, 5), (13, 6)), corners, strict=True)
        )

    import_and_check(resized, torch.randn(1, 2, 9, 11))


BOTH = ("bilinear", "nearest")


@pytest.mark.parametrize(
    ("corners", "padding", "modes"),
    [
        # Where corners lie and what is outside meet in reflections only; the mode is apart from both.
        (False, "zeros", BOTH),
        pytest.param(True, "zeros", BOTH, marks=pytest.mark.slow),
        pytest.param(False, "border", BOTH, marks=pytest.mark.slow),
        (True, "border", ("nearest",)),
        (False, "reflection", ("bilinear",)),
        (True, "reflection", ("bilinear",)),
        pytest.param(True, "border", ("bilinear",), marks=pytest.mark.slow),
        pytest.param(False, "reflection", ("nearest",), marks=pytest.mark.slow),
        pytest.param(True, "reflection", ("nearest",), marks=pytest.mark.slow),
    ],
)
def test_sampling_of_volumes(padding: str, corners: bool, modes: tuple[str, ...]) -> None:
    x, grid = torch.randn(2, 2, 3, 4, 5), torch.rand(2, 2, 3, 2, 3) * 3 - 1.5
    import_and_check(
        lambda x, g: tuple(
            F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=corners) for mode in modes
        ),
        x,
        grid,
    )
