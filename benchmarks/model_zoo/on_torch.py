"""The vocabulary in PyTorch, and architectures as modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from benchmarks.model_zoo.vocabulary import CommonLayers
from benchmarks.model_zoo.weights import weight

Tensor = torch.Tensor


class Network(CommonLayers, nn.Module):
    """An architecture as a module. Images are (N, C, H, W); parameters are made by a first call."""

    def __init__(self, architecture: Callable[..., Any], example: Sequence[Tensor]) -> None:
        super().__init__()
        self.architecture, self._complete = architecture, False
        with torch.no_grad():
            self(*example)
        self._complete = True
        self.eval()

    def forward(self, *inputs: Tensor) -> Any:
        return self.architecture(self, *inputs)

    def weight(self, name: str, shape: Sequence[int], kind: str) -> Tensor:
        """A parameter, made at the first call."""
        key = name.replace(".", "_")
        if not self._complete and key not in self._parameters:
            value = torch.from_numpy(weight(name, shape, kind))
            self.register_parameter(key, nn.Parameter(value, requires_grad=False))
        return self.get_parameter(key)

    def conv(
        self, x: Tensor, name: str, out: int, kernel: int = 1, *, stride: int = 1, groups: int = 1,
        dilation: int = 1, bias: bool = False,
    ) -> Tensor:  # fmt: skip
        w = self.weight(f"{name}.weight", (out, x.shape[1] // groups, kernel, kernel), "matrix")
        b = self.weight(f"{name}.bias", (out,), "shift") if bias else None
        return F.conv2d(x, w, b, stride, kernel // 2 * dilation, dilation, groups)

    def patches(self, x: Tensor, name: str, out: int, size: int) -> Tensor:
        w = self.weight(f"{name}.weight", (out, x.shape[1], size, size), "matrix")
        return F.conv2d(x, w, self.weight(f"{name}.bias", (out,), "shift"), size)

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        scale, shift, mean, variance = self.statistics(name, x.shape[1])
        return F.batch_norm(x, mean, variance, scale, shift, eps=1e-5)

    def group_norm(self, x: Tensor, name: str, groups: int) -> Tensor:
        return F.group_norm(x, groups, *self._scale_shift(x.shape[1], name), eps=1e-5)

    def _scale_shift(self, width: int, name: str) -> tuple[Tensor, Tensor]:
        return self.weight(f"{name}.weight", (width,), "scale"), self.weight(
            f"{name}.bias", (width,), "shift"
        )

    def layer_norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], *self._scale_shift(x.shape[-1], name), eps=1e-5)

    def scale_shift(self, x: Tensor, name: str) -> Tensor:
        scale = self.weight(f"{name}.weight", x.shape[-1:], "damping")
        shift = self.weight(f"{name}.bias", x.shape[-1:], "shift")
        return x * scale + shift

    def linear(self, x: Tensor, name: str, out: int) -> Tensor:
        w = self.weight(f"{name}.weight", (out, x.shape[-1]), "matrix")
        return F.linear(x, w, self.weight(f"{name}.bias", (out,), "shift"))

    def embed(self, ids: Tensor, name: str, count: int, width: int) -> Tensor:
        return F.embedding(ids, self.weight(name, (count, width), "table"))

    def positions(self, x: Tensor, name: str, limit: int) -> Tensor:
        return x + self.weight(name, (limit, x.shape[-1]), "shift")[: x.shape[1]]

    def activation(self, x: Tensor, kind: str) -> Tensor:
        return getattr(torch if kind in ("sigmoid", "exp") else F, kind)(x)

    def softmax(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, heads: int, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        split = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        read = None if mask is None else mask[:, None, None, :] > 0
        y = F.scaled_dot_product_attention(*split, attn_mask=read, is_causal=causal)
        return y.transpose(1, 2).flatten(2)

    def max_pool(self, x: Tensor, size: int) -> Tensor:
        return F.max_pool2d(x, size, 2, size // 2 if size % 2 else 0)

    def mean(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))

    def spread(self, x: Tensor, like: Tensor) -> Tensor:
        return x[:, :, None, None].expand(-1, -1, *like.shape[2:])

    def upsample(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2)

    def resize(self, x: Tensor, like: Tensor) -> Tensor:
        return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True)

    def concat(self, xs: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(xs), 1)

    def add_channels(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y[:, :, None, None]

    def tokens(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)

    def image(self, x: Tensor, like: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(like.shape[0], -1, *like.shape[2:])

    def join(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(list(xs), axis)

    def shifted(self, x: Tensor, by: int) -> Tensor:
        return F.pad(x[:, -by:], (0, 0, 0, -by)) if by < 0 else F.pad(x[:, :-by], (0, 0, by, 0))

    def prepend(self, x: Tensor, name: str) -> Tensor:
        row = self.weight(name, (1, 1, x.shape[-1]), "shift")
        return torch.cat([row.expand(x.shape[0], -1, -1), x], 1)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return x.reshape(*shape)

    def best(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.max(-1)

    def suppress(self, boxes: Tensor, scores: Tensor, count: int, overlap: float) -> tuple[Tensor, Tensor]:
        numbers, kept = [], []
        area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
        places = torch.arange(boxes.shape[1])
        for _ in range(count):
            number = scores.argmax(1, keepdim=True)
            box = self.rows(boxes, number)
            common = torch.minimum(boxes[..., 2:], box[..., 2:]) - torch.maximum(boxes[..., :2], box[..., :2])
            shared = common.clamp(min=0).prod(-1)
            ratio = shared / (area + area.gather(1, number) - shared)
            numbers.append(number)
            kept.append(scores.gather(1, number))
            scores = torch.where((ratio > overlap) | (places == number), 0.0, scores)
        return torch.cat(numbers, 1), torch.cat(kept, 1)

    def rows(self, x: Tensor, numbers: Tensor) -> Tensor:
        if x.dim() == 2:
            return x.gather(1, numbers)
        return x.gather(1, numbers[..., None].expand(-1, -1, x.shape[2]))

    def gru(self, x: Tensor, name: str, width: int) -> Tensor:
        weights = [
            self.weight(f"{name}.{part}", (3 * width, *rest), kind)
            for part, rest, kind in (
                ("in", (x.shape[-1],), "matrix"), ("state", (width,), "matrix"), ("in.bias", (), "shift"),
                ("state.bias", (), "shift"),
            )
        ]  # fmt: skip
        begin = x.new_zeros(1, x.shape[0], width)
        return torch.gru(x, begin, weights, True, 1, 0.0, False, False, True)[0]
