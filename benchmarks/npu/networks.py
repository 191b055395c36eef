"""The networks in int8: random weights, statistics and ranges from a few random inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.harness import networks

NAMES = ("mobilenet_v2", "resnet50", "deeplabv3", "minilm")
IMAGES, TOKENS = 4, 128


def network(name: str) -> tuple[nn.Module, list[tuple[torch.Tensor]]]:
    """A network of floats, and the inputs that it is calibrated with."""
    module = networks.network(name)
    generator = torch.Generator().manual_seed(1)
    if name not in networks.PIXELS:
        ids = torch.randint(0, module.config.vocab_size, (IMAGES, TOKENS), generator=generator)
        return networks.Forward(module).eval(), [(x,) for x in ids.split(1)]
    images = torch.randn(IMAGES, 3, *[networks.PIXELS[name]] * 2, generator=generator)
    networks.set_statistics(module, images)
    return networks.Forward(module).eval(), [(x,) for x in images.split(1)]


def quantised(name: str) -> tuple[Any, nn.Module, list[tuple[torch.Tensor]]]:
    """A network in int8 as `mansard.compile` takes it, the same of floats, and inputs."""
    import mansard

    module, data = network(name)
    return mansard.quantize(module, data, scheme="int8", attention=name == "minilm"), module, data
