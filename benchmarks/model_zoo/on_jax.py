"""The vocabulary in JAX. Images are (N, H, W, C), as in Flax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.model_zoo.vocabulary import CommonLayers
from benchmarks.model_zoo.weights import Array, weight

Tensor = Any


class Network:
    """An architecture as a function of weights and inputs."""

    def __init__(self, architecture: Callable[..., Any]) -> None:
        self.architecture = architecture
        self.weights: dict[str, Array] = {}

    def __call__(self, weights: dict[str, Any], *inputs: Tensor) -> Any:
        """The results; weights that are missing are made."""
        return self.architecture(_Layers(self.weights, weights), *inputs)

    def initialise(self, example: Sequence[Array]) -> dict[str, Array]:
        """The weights by name."""
        jax.eval_shape(lambda *xs: self({}, *xs), *example)
        return self.weights


class _Layers(CommonLayers):
    def __init__(self, new: dict[str, Array], given: dict[str, Any]) -> None:
        self.new, self.given = new, given

    def weight(self, name: str, shape: Sequence[int], kind: str) -> Tensor:
        if name not in self.given:
            self.new[name] = self.given[name] = weight(name, shape, kind)
        return jnp.asarray(self.given[name])

    def _conv(self, x: Tensor, w: Tensor, stride: int, pad: int, dilation: int, groups: int) -> Tensor:
        return lax.conv_general_dilated(
            x, w.transpose(2, 3, 1, 0), (stride,) * 2, [(pad, pad)] * 2, rhs_dilation=(dilation,) * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
        )  # fmt: skip

    def conv(
        self, x: Tensor, name: str, out: int, kernel: int = 1, *, stride: int = 1, groups: int = 1,
        dilation: int = 1, bias: bool = False,
    ) -> Tensor:  # fmt: skip
        w = self.weight(f"{name}.weight", (out, x.shape[3] // groups, kernel, kernel), "matrix")
        y = self._conv(x, w, stride, kernel // 2 * dilation, dilation, groups)
        return y + self.weight(f"{name}.bias", (out,), "shift") if bias else y

    def patches(self, x: Tensor, name: str, out: int, size: int) -> Tensor:
        w = self.weight(f"{name}.weight", (out, x.shape[3], size, size), "matrix")
        return self._conv(x, w, size, 0, 1, 1) + self.weight(f"{name}.bias", (out,), "shift")

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        scale, shift, mean, variance = self.statistics(name, x.shape[3])
        return (x - mean) * (lax.rsqrt(variance + 1e-5) * scale) + shift

    def _scale_shift(self, width: int, name: str) -> tuple[Tensor, Tensor]:
        return self.weight(f"{name}.weight", (width,), "scale"), self.weight(
            f"{name}.bias", (width,), "shift"
        )

    def group_norm(self, x: Tensor, name: str, groups: int) -> Tensor:
        scale, shift = self._scale_shift(x.shape[3], name)
        grouped = x.reshape(*x.shape[:3], groups, -1)
        mean = grouped.mean((1, 2, 4), keepdims=True)
        variance = jnp.square(grouped - mean).mean((1, 2, 4), keepdims=True)
        return ((grouped - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale + shift

    def layer_norm(self, x: Tensor, name: str) -> Tensor:
        scale, shift = self._scale_shift(x.shape[-1], name)
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift

    def scale_shift(self, x: Tensor, name: str) -> Tensor:
        scale = self.weight(f"{name}.weight", x.shape[-1:], "damping")
        shift = self.weight(f"{name}.bias", x.shape[-1:], "shift")
        return x * scale + shift

    def linear(self, x: Tensor, name: str, out: int) -> Tensor:
        w = self.weight(f"{name}.weight", (out, x.shape[-1]), "matrix")
        return x @ w.T + self.weight(f"{name}.bias", (out,), "shift")

    def embed(self, ids: Tensor, name: str, count: int, width: int) -> Tensor:
        return jnp.take(self.weight(name, (count, width), "table"), ids, axis=0, mode="clip")

    def positions(self, x: Tensor, name: str, limit: int) -> Tensor:
        return x + self.weight(name, (limit, x.shape[-1]), "shift")[: x.shape[1]]

    def activation(self, x: Tensor, kind: str) -> Tensor:
        if kind == "gelu":
            return jax.nn.gelu(x, approximate=False)
        return jnp.exp(x) if kind == "exp" else getattr(jax.nn, kind)(x)

    def softmax(self, x: Tensor) -> Tensor:
        return jax.nn.softmax(x)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, heads: int, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        split = (t.reshape(*t.shape[:2], heads, -1) for t in (q, k, v))
        read = None if mask is None else mask[:, None, None, :] > 0
        return jax.nn.dot_product_attention(*split, mask=read, is_causal=causal).reshape(q.shape)

    def max_pool(self, x: Tensor, size: int) -> Tensor:
        pad = size // 2 if size % 2 else 0
        window = (1, size, size, 1), (1, 2, 2, 1), ((0, 0), (pad, pad), (pad, pad), (0, 0))
        return lax.reduce_window(x, -jnp.inf, lax.max, *window)

    def mean(self, x: Tensor) -> Tensor:
        return x.mean((1, 2))

    def spread(self, x: Tensor, like: Tensor) -> Tensor:
        return jnp.broadcast_to(x[:, None, None, :], (*like.shape[:3], x.shape[1]))

    def upsample(self, x: Tensor) -> Tensor:
        return x.repeat(2, 1).repeat(2, 2)

    def resize(self, x: Tensor, like: Tensor) -> Tensor:
        for axis in (1, 2):
            length, size = x.shape[axis], like.shape[axis]
            place = jnp.arange(size, dtype=jnp.float32) * ((length - 1) / (size - 1))
            low = jnp.floor(place)
            rest = (place - low).reshape(-1, *(1,) * (3 - axis))
            parts = (
                jnp.take(x, jnp.clip(low.astype(int) + k, 0, length - 1), axis=axis, mode="clip")
                for k in (0, 1)
            )
            x = sum(p * w for p, w in zip(parts, (1 - rest, rest), strict=True))
        return x

    def concat(self, xs: Sequence[Tensor]) -> Tensor:
        return jnp.concatenate(list(xs), 3)

    def add_channels(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y[:, None, None, :]

    def tokens(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], -1, x.shape[3])

    def image(self, x: Tensor, like: Tensor) -> Tensor:
        return x.reshape(like.shape)

    def join(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        return jnp.concatenate(list(xs), axis)

    def shifted(self, x: Tensor, by: int) -> Tensor:
        part = x[:, -by:] if by < 0 else x[:, :-by]
        return jnp.pad(part, ((0, 0), (max(by, 0), max(-by, 0)), (0, 0)))

    def prepend(self, x: Tensor, name: str) -> Tensor:
        row = self.weight(name, (1, 1, x.shape[-1]), "shift")
        return jnp.concatenate([jnp.broadcast_to(row, (x.shape[0], 1, x.shape[-1])), x], 1)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return x.reshape(*shape)

    def best(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.max(-1), x.argmax(-1)

    def suppress(self, boxes: Tensor, scores: Tensor, count: int, overlap: float) -> tuple[Tensor, Tensor]:
        area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
        places = jnp.arange(boxes.shape[1])

        def step(scores: Tensor, _: None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            number = scores.argmax(1, keepdims=True)
            box = self.rows(boxes, number)
            common = jnp.minimum(boxes[..., 2:], box[..., 2:]) - jnp.maximum(boxes[..., :2], box[..., :2])
            shared = jnp.maximum(common, 0).prod(-1)
            ratio = shared / (area + self.rows(area, number) - shared)
            dropped = jnp.where((ratio > overlap) | (places == number), 0.0, scores)
            return dropped, (number[:, 0], self.rows(scores, number)[:, 0])

        numbers, kept = lax.scan(step, scores, None, count)[1]
        return numbers.T, kept.T

    def rows(self, x: Tensor, numbers: Tensor) -> Tensor:
        places = numbers.reshape(*numbers.shape, *(1,) * (x.ndim - 2))
        return jnp.take_along_axis(x, places, 1, mode="clip")

    def gru(self, x: Tensor, name: str, width: int) -> Tensor:
        into = self.weight(f"{name}.in", (3 * width, x.shape[-1]), "matrix")
        within = self.weight(f"{name}.state", (3 * width, width), "matrix")
        gates = x @ into.T + self.weight(f"{name}.in.bias", (3 * width,), "shift")
        bias = self.weight(f"{name}.state.bias", (3 * width,), "shift")

        def step(state: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
            inner = state @ within.T + bias
            (r, z, n), (a, b, c) = jnp.split(gate, 3, -1), jnp.split(inner, 3, -1)
            reset, update = jax.nn.sigmoid(r + a), jax.nn.sigmoid(z + b)
            state = (1 - update) * jnp.tanh(n + reset * c) + update * state
            return state, state

        begin = jnp.zeros((x.shape[0], width), x.dtype)
        return lax.scan(step, begin, gates.swapaxes(0, 1))[1].swapaxes(0, 1)
