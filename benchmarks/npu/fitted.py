"""Convolutional networks without training that classify textures: seeded weights, a head in closed form.

Random weights alone lose what an image shows within some ten layers. Here most filters over windows are
smooth, as are those of trained networks, and activations are mostly in their linear part; the classes of
`textures` can then be told from the last features, and ridge regression on one-hot classes finds how.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from benchmarks.harness import networks
from benchmarks.npu.textures import CLASSES, images, mosaics

SMOOTH = 8
"""One filter of so many keeps no mean: it finds edges."""
ROUGH = 0.25
"""Part of a smooth filter that is random."""
SHIFT = 1.5
"""The mean of a batch norm's results, in their standard deviations, where an activation follows."""
STATISTICS = 24
"""Images that batch norms get their statistics from."""
SAMPLES = {"mobilenet_v2": 240, "resnet50": 144, "deeplabv3": 48}
"""Images that the head is fitted to."""
RIDGE = 0.3
"""Weight of the head's squares: features may be off by noise of so much of their variance."""
FIT_SEED, DATA_SEED, TEST_SEED = 10, 11, 12


def fitted(name: str) -> nn.Module:
    """A network of `networks.PIXELS` in eval mode, with a head of `textures.CLASSES`."""
    module = networks.network(name)
    generator = torch.Generator().manual_seed(2)
    pixels, labels = labelled(name, SAMPLES[name], FIT_SEED)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                _smooth(part, generator)
        _shift(module)
        networks.set_statistics(module, pixels[:STATISTICS])
        _fit_head(module, pixels, labels)
    return module


def labelled(name: str, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images for a network, and the classes of its answers: (count,), or (count, rows, columns)."""
    size = networks.PIXELS[name]
    if name != "deeplabv3":
        pixels, classes = images(count, size, seed)
        return torch.from_numpy(pixels), torch.from_numpy(classes)
    pixels, classes = mosaics(count, size, seed)
    places = np.rint(np.linspace(0, size - 1, (size + 7) // 8)).astype(np.int64)  # its stride is 8
    return torch.from_numpy(pixels), torch.from_numpy(classes[:, places[:, None], places])


def _smooth(convolution: nn.Conv2d, generator: torch.Generator) -> None:
    """Give a convolution seeded weights of which most keep the mean of their window."""
    out, fan_in, *window = convolution.weight.shape
    weight = torch.randn(out, fan_in, *window, generator=generator)
    if window != [1, 1]:
        axes = [torch.from_numpy(np.hanning(w + 2)[1:-1].astype(np.float32)) for w in window]
        blur = axes[0][:, None] * axes[1]
        if convolution.dilation[0] > 1:  # it would mix places that are far apart
            blur[blur < blur.max()] = 0
            blur *= ROUGH * blur.numel() / 2
        blur *= weight[0, 0].numel() / blur.sum()
        weight -= weight.mean((2, 3), keepdim=True)
        sign = torch.randn(out, fan_in, 1, 1, generator=generator) if fan_in > 1 else torch.ones(out, 1, 1, 1)
        smooth = torch.arange(out) % SMOOTH != 0
        weight[smooth] = sign[smooth] * blur + ROUGH * weight[smooth]
    convolution.weight.copy_(weight / (fan_in * window[0] * window[1]) ** 0.5)


def _shift(module: nn.Module) -> None:
    """Move what batch norms give into the linear part of the activations that follow."""
    for part in module.modules():
        norm = getattr(part, "normalization", None)
        if isinstance(norm, nn.BatchNorm2d):
            linear = getattr(part, "activation", None) is None or isinstance(part.activation, nn.Identity)
            norm.bias.fill_(0.0 if linear else SHIFT)
    if hasattr(module, "segmentation_head"):  # what all of an image shows tells little of a place
        module.segmentation_head.conv_pool.normalization.weight.fill_(0.05)


def _head(module: nn.Module) -> tuple[nn.Module, str]:
    """The module that holds the last layer, and its name there."""
    if hasattr(module, "segmentation_head"):
        return module.segmentation_head.classifier, "convolution"
    return (
        (module.classifier, "1") if isinstance(module.classifier, nn.Sequential) else (module, "classifier")
    )


def _fit_head(module: nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> None:
    """Replace the last layer by one of as many outputs as classes, the solution of a ridge regression."""
    holder, name = _head(module)
    last = getattr(holder, name)
    found: list[torch.Tensor] = []
    handle = last.register_forward_pre_hook(lambda _, args: found.append(_rows(args[0])))
    for batch in pixels.split(4):
        module(batch)
    handle.remove()
    weight, bias = _ridge(torch.cat(found), nn.functional.one_hot(labels.reshape(-1), len(CLASSES)))
    if isinstance(last, nn.Conv2d):
        head: nn.Module = nn.Conv2d(last.in_channels, len(CLASSES), 1)
        weight = weight[..., None, None]
    else:
        head = nn.Linear(last.in_features, len(CLASSES))
    head.weight.copy_(weight)
    head.bias.copy_(bias)
    setattr(holder, name, head)


def _rows(features: torch.Tensor) -> torch.Tensor:
    """Features as a matrix with channels along the second axis."""
    return features if features.ndim == 2 else features.movedim(1, -1).reshape(-1, features.shape[1])


def _ridge(features: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight (classes, channels) and bias (classes,) closest to ``wanted`` (rows, classes)."""
    x, y = features.double(), wanted.double()
    middle, level = x.mean(0), y.mean(0)
    x, y = x - middle, y - level
    penalty = RIDGE * x.square().sum() / x.shape[1]
    if x.shape[0] < x.shape[1]:
        weight = x.T @ torch.linalg.solve(x @ x.T + penalty * torch.eye(len(x)), y)
    else:
        weight = torch.linalg.solve(x.T @ x + penalty * torch.eye(x.shape[1]), x.T @ y)
    return weight.T.float(), (level - middle @ weight).float()


def predictions(module: nn.Module, pixels: torch.Tensor) -> Iterator[torch.Tensor]:
    """The classes that a network gives to each of some images."""
    with torch.no_grad():
        for image in pixels.split(1):
            yield module(image).argmax(1)[0]
