"""What architectures are written against: the layers of one framework.

Images are tensors in the framework's own layout, which `tokens` and `concat` hide. Weights come by name from
`benchmarks.model_zoo.weights`, so that every framework has the same; matrices are (out, in, *window).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Protocol

Tensor = Any


class Vocabulary(Protocol):
    """Layers over one framework's tensors. ``name`` says whose weights a layer has."""

    def conv(
        self, x: Tensor, name: str, out: int, kernel: int = 1, *, stride: int = 1, groups: int = 1,
        dilation: int = 1, bias: bool = False,
    ) -> Tensor:  # fmt: skip
        """A convolution with half a window of padding on every side."""

    def patches(self, x: Tensor, name: str, out: int, size: int) -> Tensor:
        """A convolution by steps of its window, without padding."""

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        """By stored statistics."""

    def group_norm(self, x: Tensor, name: str, groups: int) -> Tensor:
        """An image's channels, in groups."""

    def layer_norm(self, x: Tensor, name: str) -> Tensor:
        """Over the last dim, with weights."""

    def scale_shift(self, x: Tensor, name: str) -> Tensor:
        """A scale and a shift for each element of the last dim."""

    def linear(self, x: Tensor, name: str, out: int) -> Tensor:
        """A product of the last dim, with bias."""

    def embed(self, ids: Tensor, name: str, count: int, width: int) -> Tensor:
        """Rows of a table."""

    def positions(self, x: Tensor, name: str, limit: int) -> Tensor:
        """(batch, length, width) plus a row for each position."""

    def activation(self, x: Tensor, kind: str) -> Tensor:
        """``relu``, ``relu6``, ``silu``, ``gelu``, ``sigmoid`` or ``exp``."""

    def softmax(self, x: Tensor) -> Tensor:
        """Over the last dim."""

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, heads: int, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """(batch, length, width) each; ``mask`` (batch, keys) is 1 for keys that are read."""

    def max_pool(self, x: Tensor, size: int) -> Tensor:
        """By steps of 2, with a padding of ``size // 2`` if the size is odd."""

    def mean(self, x: Tensor) -> Tensor:
        """An image's mean: (batch, channels)."""

    def spread(self, x: Tensor, like: Tensor) -> Tensor:
        """(batch, channels) at every place of an image."""

    def upsample(self, x: Tensor) -> Tensor:
        """Each pixel twice along both dims."""

    def resize(self, x: Tensor, like: Tensor) -> Tensor:
        """Linear interpolation to the size of another image, with aligned corners."""

    def concat(self, xs: Sequence[Tensor]) -> Tensor:
        """Channels of images."""

    def add_channels(self, x: Tensor, y: Tensor) -> Tensor:
        """An image plus (batch, channels)."""

    def tokens(self, x: Tensor) -> Tensor:
        """An image as (batch, places, channels)."""

    def image(self, x: Tensor, like: Tensor) -> Tensor:
        """`tokens` undone."""

    def join(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        """Tensors of any kind, along an axis."""

    def shifted(self, x: Tensor, by: int) -> Tensor:
        """(batch, length, width) moved along the length, filled up with zeros."""

    def first(self, x: Tensor) -> Tensor:
        """The first of a (batch, length, width)."""

    def prepend(self, x: Tensor, name: str) -> Tensor:
        """A learnt first element of a (batch, length, width)."""

    def columns(self, x: Tensor, first: int, last: int) -> Tensor:
        """A part of the last dim."""

    def column(self, x: Tensor, number: int) -> Tensor:
        """One of the last dim."""

    def constant(self, name: str, shape: Sequence[int]) -> Tensor:
        """A tensor of positive numbers."""

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The same elements: -1 is the batch, or what is left."""

    def best(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The largest of the last dim and its number, in i64 or i32."""

    def suppress(self, boxes: Tensor, scores: Tensor, count: int, overlap: float) -> tuple[Tensor, Tensor]:
        """Greedy non-maximum suppression of boxes (batch, N, 4) of corners by scores (batch, N): the numbers
        of ``count`` boxes, and their scores, 0 where fewer are left."""

    def rows(self, x: Tensor, numbers: Tensor) -> Tensor:
        """(batch, N, …) to (batch, count, …): rows by numbers (batch, count)."""

    def gru(self, x: Tensor, name: str, width: int) -> Tensor:
        """(batch, length, features) to (batch, length, width), by the gates of PyTorch."""


class CommonLayers:
    """Layers that every framework writes alike."""

    @abc.abstractmethod
    def weight(self, name: str, shape: Sequence[int], kind: str) -> Tensor:
        """A weight of the model (`benchmarks.model_zoo.weights.weight`)."""

    def first(self, x: Tensor) -> Tensor:
        """See `Vocabulary.first`."""
        return x[:, 0]

    def columns(self, x: Tensor, first: int, last: int) -> Tensor:
        """See `Vocabulary.columns`."""
        return x[..., first:last]

    def column(self, x: Tensor, number: int) -> Tensor:
        """See `Vocabulary.column`."""
        return x[..., number]

    def constant(self, name: str, shape: Sequence[int]) -> Tensor:
        """See `Vocabulary.constant`."""
        return self.weight(name, shape, "scale")

    def statistics(self, name: str, channels: int) -> list[Tensor]:
        """The scale, shift, mean and variance of a batch norm, (channels,) each."""
        parts = {"weight": "scale", "bias": "shift", "mean": "shift", "variance": "variance"}
        return [self.weight(f"{name}.{part}", (channels,), kind) for part, kind in parts.items()]
