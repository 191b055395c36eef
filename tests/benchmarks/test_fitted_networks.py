"""Networks whose heads are fitted to textures."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.npu.fitted import _ridge, _smooth  # noqa: E402
from benchmarks.npu.textures import CLASSES, images, mosaics  # noqa: E402


def test_images_are_the_same_for_a_seed_and_hold_every_class():
    pixels, classes = images(13, 32, seed=3)
    again, _ = images(13, 32, seed=3)
    np.testing.assert_array_equal(pixels, again)
    assert pixels.shape == (13, 3, 32, 32) and np.abs(pixels).max() < 8
    assert classes.tolist() == [*range(len(CLASSES)), 0]
    assert not np.array_equal(pixels[0], pixels[12])


def test_each_region_of_a_mosaic_has_a_class():
    pixels, classes = mosaics(2, 40, seed=1, regions=3)
    assert pixels.shape == (2, 3, 40, 40) and classes.shape == (2, 40, 40)
    assert all(1 < len(np.unique(c)) <= 3 for c in classes)


def test_a_head_tells_classes_by_colour_apart():
    pixels, classes = images(48, 32, seed=1)
    others, wanted = images(24, 32, seed=2)
    x, y = torch.from_numpy(pixels).mean((2, 3)), torch.nn.functional.one_hot(torch.from_numpy(classes))
    weight, bias = _ridge(x, y)
    told = (torch.from_numpy(others).mean((2, 3)) @ weight.T + bias).argmax(1).numpy()
    assert (told == wanted).mean() > 3 / len(CLASSES)


@pytest.mark.parametrize("groups", [1, 8])
def test_most_filters_keep_the_mean_of_their_window(groups):
    convolution = torch.nn.Conv2d(8, 16, 3, groups=groups)
    with torch.no_grad():
        _smooth(convolution, torch.Generator().manual_seed(0))
    sums = convolution.weight.sum((2, 3)).abs()
    assert (sums[torch.arange(16) % 8 == 0] < 1e-5).all() and (sums.mean(1) > 1e-3).sum() == 14
