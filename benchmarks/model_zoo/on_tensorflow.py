"""The vocabulary in TensorFlow. Images are (N, H, W, C)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from benchmarks.model_zoo.vocabulary import CommonLayers
from benchmarks.model_zoo.weights import weight

Tensor = Any


class Layers(CommonLayers):
    """Layers with constant weights. Sizes that a graph leaves open are read from tensors."""

    def __init__(self) -> None:
        self.constants: dict[str, Any] = {}

    def weight(self, name: str, shape: Sequence[int], kind: str) -> Tensor:
        """A weight of the model."""
        if name not in self.constants:
            self.constants[name] = weight(name, shape, kind)
        return tf.constant(self.constants[name])

    def _conv(self, x: Tensor, w: Tensor, stride: int, pad: int, dilation: int) -> Tensor:
        padding = [[0, 0], [pad, pad], [pad, pad], [0, 0]] if pad else "VALID"
        return tf.nn.conv2d(x, tf.transpose(w, (2, 3, 1, 0)), stride, padding, dilations=dilation)

    def conv(
        self, x: Tensor, name: str, out: int, kernel: int = 1, *, stride: int = 1, groups: int = 1,
        dilation: int = 1, bias: bool = False,
    ) -> Tensor:  # fmt: skip
        w = self.weight(f"{name}.weight", (out, x.shape[3] // groups, kernel, kernel), "matrix")
        pad = kernel // 2 * dilation
        if groups > 1:
            same = stride == 1
            x = x if same else tf.pad(x, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
            y = tf.nn.depthwise_conv2d(
                x, tf.transpose(w, (2, 3, 0, 1)), (1, stride, stride, 1), "SAME" if same else "VALID",
                dilations=(dilation, dilation),
            )  # fmt: skip
        elif stride == 1 and pad:
            y = tf.nn.conv2d(x, tf.transpose(w, (2, 3, 1, 0)), 1, "SAME", dilations=dilation)
        else:
            y = self._conv(x, w, stride, pad, dilation)
        return y + self.weight(f"{name}.bias", (out,), "shift") if bias else y

    def patches(self, x: Tensor, name: str, out: int, size: int) -> Tensor:
        w = self.weight(f"{name}.weight", (out, x.shape[3], size, size), "matrix")
        return self._conv(x, w, size, 0, 1) + self.weight(f"{name}.bias", (out,), "shift")

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        scale, shift, mean, variance = self.statistics(name, x.shape[3])
        return tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-5)

    def _scale_shift(self, width: int, name: str) -> tuple[Tensor, Tensor]:
        return self.weight(f"{name}.weight", (width,), "scale"), self.weight(
            f"{name}.bias", (width,), "shift"
        )

    def group_norm(self, x: Tensor, name: str, groups: int) -> Tensor:
        scale, shift = self._scale_shift(x.shape[3], name)
        shape = tf.shape(x)
        grouped = tf.reshape(x, tf.concat([shape[:3], [groups, x.shape[3] // groups]], 0))
        mean = tf.reduce_mean(grouped, (1, 2, 4), keepdims=True)
        distance = grouped - mean
        variance = tf.reduce_mean(distance * distance, (1, 2, 4), keepdims=True)
        normed = tf.reshape(distance * tf.math.rsqrt(variance + 1e-5), shape)
        return tf.ensure_shape(normed, x.shape) * scale + shift

    def layer_norm(self, x: Tensor, name: str) -> Tensor:
        scale, shift = self._scale_shift(x.shape[-1], name)
        distance = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(distance * distance, -1, keepdims=True)
        return distance * tf.math.rsqrt(variance + 1e-5) * scale + shift

    def scale_shift(self, x: Tensor, name: str) -> Tensor:
        scale = self.weight(f"{name}.weight", x.shape[-1:], "damping")
        shift = self.weight(f"{name}.bias", x.shape[-1:], "shift")
        return x * scale + shift

    def linear(self, x: Tensor, name: str, out: int) -> Tensor:
        w = self.weight(f"{name}.weight", (out, x.shape[-1]), "matrix")
        bias = self.weight(f"{name}.bias", (out,), "shift")
        if x.shape.rank == 2:
            return tf.matmul(x, w, transpose_b=True) + bias
        flat = tf.reshape(x, (-1, x.shape[-1]))
        y = tf.matmul(flat, w, transpose_b=True) + bias
        return tf.reshape(
            y, tf.concat([tf.shape(x)[:-1], [out]], 0) if None in x.shape else (*x.shape[:-1], out)
        )

    def embed(self, ids: Tensor, name: str, count: int, width: int) -> Tensor:
        return tf.gather(self.weight(name, (count, width), "table"), ids)

    def positions(self, x: Tensor, name: str, limit: int) -> Tensor:
        return x + self.weight(name, (limit, x.shape[-1]), "shift")[: x.shape[1]]

    def activation(self, x: Tensor, kind: str) -> Tensor:
        if kind == "gelu":
            return tf.nn.gelu(x, approximate=False)
        return getattr(tf if kind in ("exp", "sigmoid") else tf.nn, kind)(x)

    def softmax(self, x: Tensor) -> Tensor:
        return tf.nn.softmax(x)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, heads: int, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        width = q.shape[-1] // heads
        a, b, c = (
            tf.transpose(tf.reshape(t, (-1, t.shape[1], heads, width)), (0, 2, 1, 3)) for t in (q, k, v)
        )
        scores = tf.matmul(a, b, transpose_b=True) * width**-0.5
        if mask is not None:
            scores += (1.0 - mask[:, None, None, :]) * -1e9
        if causal:
            length = q.shape[1]
            scores += tf.constant([[0.0 if j <= i else -1e9 for j in range(length)] for i in range(length)])
        y = tf.matmul(tf.nn.softmax(scores), c)
        return tf.reshape(tf.transpose(y, (0, 2, 1, 3)), (-1, *q.shape[1:]))

    def max_pool(self, x: Tensor, size: int) -> Tensor:
        if size % 2:
            x = tf.pad(x, [[0, 0], *[[size // 2] * 2] * 2, [0, 0]], constant_values=-3e38)
        return tf.nn.max_pool2d(x, size, 2, "VALID")

    def mean(self, x: Tensor) -> Tensor:
        return tf.reduce_mean(x, (1, 2))

    def spread(self, x: Tensor, like: Tensor) -> Tensor:
        return tf.broadcast_to(x[:, None, None, :], tf.concat([tf.shape(like)[:3], [x.shape[1]]], 0))

    def upsample(self, x: Tensor) -> Tensor:
        return tf.compat.v1.image.resize_nearest_neighbor(x, (2 * x.shape[1], 2 * x.shape[2]))

    def resize(self, x: Tensor, like: Tensor) -> Tensor:
        return tf.compat.v1.image.resize_bilinear(x, like.shape[1:3], align_corners=True)

    def concat(self, xs: Sequence[Tensor]) -> Tensor:
        return tf.concat(list(xs), 3)

    def add_channels(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y[:, None, None, :]

    def tokens(self, x: Tensor) -> Tensor:
        return tf.reshape(x, (-1, x.shape[1] * x.shape[2], x.shape[3]))

    def image(self, x: Tensor, like: Tensor) -> Tensor:
        return tf.reshape(x, (-1, *like.shape[1:3], x.shape[2]))

    def join(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        return tf.concat(list(xs), axis)

    def shifted(self, x: Tensor, by: int) -> Tensor:
        part = x[:, -by:] if by < 0 else x[:, :-by]
        return tf.pad(part, [[0, 0], [max(by, 0), max(-by, 0)], [0, 0]])

    def prepend(self, x: Tensor, name: str) -> Tensor:
        row = self.weight(name, (1, 1, x.shape[-1]), "shift")
        return tf.concat([tf.broadcast_to(row, tf.stack([tf.shape(x)[0], 1, x.shape[-1]])), x], 1)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return tf.reshape(x, shape)

    def best(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return tf.reduce_max(x, -1), tf.argmax(x, -1, output_type=tf.int32)

    def suppress(self, boxes: Tensor, scores: Tensor, count: int, overlap: float) -> tuple[Tensor, Tensor]:
        if boxes.shape[0] == 1:  # the operator takes one image
            numbers, kept, _ = tf.raw_ops.NonMaxSuppressionV5(
                boxes=boxes[0], scores=scores[0], max_output_size=count, iou_threshold=overlap,
                score_threshold=0.0, soft_nms_sigma=0.0, pad_to_max_output_size=True,
            )  # fmt: skip
            return numbers[None], kept[None]
        area = tf.reduce_prod(boxes[..., 2:] - boxes[..., :2], -1)
        places = tf.range(boxes.shape[1])
        chosen = []
        for _ in range(count):
            number = tf.argmax(scores, 1, output_type=tf.int32)[:, None]
            box = self.rows(boxes, number)
            common = tf.minimum(boxes[..., 2:], box[..., 2:]) - tf.maximum(boxes[..., :2], box[..., :2])
            shared = tf.reduce_prod(tf.maximum(common, 0.0), -1)
            ratio = shared / (area + self.rows(area, number) - shared)
            chosen.append((number, self.rows(scores, number)))
            scores = tf.where((ratio > overlap) | (places == number), 0.0, scores)
        numbers, kept = (tf.concat(part, 1) for part in zip(*chosen, strict=True))
        return numbers, kept

    def rows(self, x: Tensor, numbers: Tensor) -> Tensor:
        return tf.gather(x, numbers, batch_dims=1)

    def gru(self, x: Tensor, name: str, width: int) -> Tensor:
        into = self.weight(f"{name}.in", (3 * width, x.shape[-1]), "matrix")
        within = self.weight(f"{name}.state", (3 * width, width), "matrix")
        bias = self.weight(f"{name}.state.bias", (3 * width,), "shift")
        flat = tf.reshape(x, (-1, x.shape[-1]))
        gates = tf.matmul(flat, into, transpose_b=True) + self.weight(
            f"{name}.in.bias", (3 * width,), "shift"
        )
        gates = tf.reshape(gates, (-1, x.shape[1], 3 * width))
        state = tf.zeros_like(gates[:, 0, :width])
        states = []
        for gate in tf.unstack(gates, axis=1):
            inner = tf.matmul(state, within, transpose_b=True) + bias
            (r, z, n), (a, b, c) = tf.split(gate, 3, -1), tf.split(inner, 3, -1)
            reset, update = tf.sigmoid(r + a), tf.sigmoid(z + b)
            state = (1 - update) * tf.tanh(n + reset * c) + update * state
            states.append(state)
        return tf.stack(states, 1)
