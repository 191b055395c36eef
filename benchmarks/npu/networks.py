"""The networks in int8: seeded weights, heads fitted to textures, statistics and ranges from such images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.harness import networks
from benchmarks.npu.fitted import DATA_SEED, TEST_SEED, fitted, labelled

NAMES = ("mobilenet_v2", "resnet50", "deeplabv3", "minilm")
IMAGES = {"mobilenet_v2": 12, "resnet50": 12, "deeplabv3": 8}
TEXTS, TOKENS = 4, 128


def network(name: str) -> tuple[nn.Module, list[tuple[torch.Tensor]]]:
    """A network of floats, and the inputs that it is calibrated with.

    Those of images tell a dozen classes of textures (of each pixel, DeepLabV3); MiniLM's weights are random.
    """
    if name not in networks.PIXELS:
        module = networks.network(name)
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(0, module.config.vocab_size, (TEXTS, TOKENS), generator=generator)
        return networks.Forward(module).eval(), [(x,) for x in ids.split(1)]
    pixels, _ = labelled(name, IMAGES[name], DATA_SEED)
    return networks.Forward(fitted(name)).eval(), [(x,) for x in pixels.split(1)]


def tests(name: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images that a network was neither fitted to nor calibrated with, and their classes."""
    return labelled(name, count, TEST_SEED)


def quantised(name: str) -> tuple[Any, nn.Module, list[tuple[torch.Tensor]]]:
    """A network in int8 as `mansard.compile` takes it, the same of floats, and inputs."""
    import mansard

    module, data = network(name)
    return mansard.quantize(module, data, scheme="int8", attention=name == "minilm"), module, data
