"""Maxima of windows with their positions, antialiased resizing and 3-d sampling, against PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.frontends.torch_import import Apply, import_and_check

from mansard.frontends import import_model

torch.manual_seed(7)
INF = torch.inf


@pytest.mark.parametrize(
    ("kernel", "options"),
    [(3, {"stride": 2, "padding": 1}), (2, {"dilation": 2, "ceil_mode": True, "stride": 3})],
)
def test_positions_of_maxima(kernel: int, options: dict[str, int]) -> None:
    x = torch.randint(0, 4, (2, 2, 7, 9)).float()
    x[0, 0, 2, 3], x[0, 1] = torch.nan, -INF
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
    import_and_check(
        lambda x: (
            *pool[1](x[0], kernel, return_indices=True, **options),
            *pool[2](x, kernel, return_indices=True, **options),
            *pool[3](x.view(1, 1, 4, 7, 9), kernel, return_indices=True, **options),
        ),
        x,
    )


def test_maxima_without_positions_stay_one_window_op() -> None:
    graph = import_model(Apply(lambda x: F.max_pool2d(x, 2)), (torch.randn(1, 1, 8, 8),))
    assert len(graph.ops) < 4


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_resizing(mode: str) -> None:
    def resized(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            F.interpolate(x, size, mode=mode, antialias=True, align_corners=corners)
            for size in ((4, 5), (13, 6))
            for corners in (False, True)
        )

    import_and_check(resized, torch.randn(1, 2, 9, 11))


@pytest.mark.parametrize(
    ("corners", "padding"),
    [
        # Where corners lie and what is outside meet in reflections only.
        (False, "zeros"),
        pytest.param(True, "zeros", marks=pytest.mark.slow),
        pytest.param(False, "border", marks=pytest.mark.slow),
        (True, "border"),
        (False, "reflection"),
        (True, "reflection"),
    ],
)
def test_sampling_of_volumes(padding: str, corners: bool) -> None:
    x, grid = torch.randn(2, 2, 3, 4, 5), torch.rand(2, 2, 3, 2, 3) * 3 - 1.5
    import_and_check(
        lambda x, g: tuple(
            F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=corners)
            for mode in ("bilinear", "nearest")
        ),
        x,
        grid,
    )
