"""Static quantisation to 8 bits in plain PyTorch ops, for models that meet int8 hardware.

Every convolution and linear layer gets its input in 8 bits (one scale and zero point, from what calibration
inputs have shown) and keeps its weights in 8 bits (a scale for each output channel). The module computes what
it computed before on the numbers these integers stand for. Mansard multiplies the integers themselves, as it
does for models that PyTorch's own flows have quantised (PT2E, torchao).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import nn


class Quantised(nn.Module):
    """A convolution or linear layer whose input and weights are 8-bit integers; ``low`` and ``high`` bound
    its input."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, low: float, high: float) -> None:
        super().__init__()
        weight = layer.weight.detach()
        largest = weight.flatten(1).abs().amax(1).clamp(min=1e-8)
        self.scales = nn.Buffer((largest / 127).reshape(-1, *[1] * (weight.dim() - 1)))
        self.weight = nn.Buffer(torch.round(weight / self.scales).to(torch.int8))
        self.bias = layer.bias
        self.scale = max(high - low, 1e-8) / 255
        self.zero = round(-low / self.scale)
        self.convolves = isinstance(layer, nn.Conv2d)
        if isinstance(layer, nn.Conv2d):  # models look at these to pad
            self.stride, self.padding, self.kernel_size = layer.stride, layer.padding, layer.kernel_size
            self.dilation, self.groups = layer.dilation, layer.groups

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's result, in f32."""
        q = torch.clamp(torch.round(x * (1 / self.scale)) + self.zero, 0, 255).to(torch.uint8)
        x = (q.float() - self.zero) * self.scale
        weight = self.weight.float() * self.scales
        if self.convolves:
            how = (self.stride, self.padding, self.dilation, self.groups)
            return nn.functional.conv2d(x, weight, self.bias, *how)
        return nn.functional.linear(x, weight, self.bias)


def quantise(module: nn.Module, calibration: Iterable[torch.Tensor]) -> nn.Module:
    """A copy of a module in eval mode with every convolution and linear layer quantised.

    ``calibration`` are inputs like those to come; what exceeds their range later is cut off.
    """
    module = copy.deepcopy(module).eval()
    layers = {name: m for name, m in module.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))}
    ranges = {name: [0.0, 0.0] for name in layers}

    def watch(name: str) -> None:
        def see(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            low, high = ranges[name]
            ranges[name] = [min(low, inputs[0].min().item()), max(high, inputs[0].max().item())]

        hooks.append(layers[name].register_forward_pre_hook(see))

    hooks: list[torch.utils.hooks.RemovableHandle] = []
    for name in layers:
        watch(name)
    with torch.no_grad():
        for x in calibration:
            module(x)
    for hook in hooks:
        hook.remove()
    for name, layer in layers.items():
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, Quantised(layer, *ranges[name]))
    return module
