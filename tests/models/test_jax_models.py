"""Models written in JAX: they match JAX on each device and split, in as many dispatches as PyTorch's."""

import numpy as np
import pytest
import torch
from torch import nn

import mansard
from mansard.placement import PlacementOptions

jax = pytest.importorskip("jax", reason="install mansard[jax]")
jnp = jax.numpy
D, HEADS, T = 32, 2, 6
RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, T, D), np.float32)
IMAGES = RNG.standard_normal((2, 8, 8, 4), np.float32)


def weights(*shape):
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


BLOCK = {n: weights(D, D) for n in ("q", "k", "v", "o")} | {"up": weights(D, 64), "down": weights(64, D)}
CONVS = [weights(3, 3, 4, 4) for _ in range(2)]
CELL = {"x": weights(D, 3 * D), "h": weights(D, 3 * D)}


def norm(x):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def attention(q, k, v):
    q, k, v = (t.reshape(t.shape[0], -1, HEADS, D // HEADS) for t in (q, k, v))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(D // HEADS)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1), v)
    return mixed.reshape(mixed.shape[0], -1, D)


def transformer_block(x):
    h = norm(x)
    x = x + attention(*(h @ BLOCK[n] for n in "qkv")) @ BLOCK["o"]
    return x + jax.nn.gelu(norm(x) @ BLOCK["up"], approximate=False) @ BLOCK["down"]


def residual_block(x):
    def conv(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    y = conv(jax.nn.relu(conv(x, CONVS[0])), CONVS[1])
    return jnp.mean(jax.nn.relu(x + y), (1, 2))


def gru(x):
    def step(h, row):
        a, b = row @ CELL["x"], h @ CELL["h"]
        z = jax.nn.sigmoid(a[:, :D] + b[:, :D])
        r = jax.nn.sigmoid(a[:, D : 2 * D] + b[:, D : 2 * D])
        h = (1 - z) * jnp.tanh(a[:, 2 * D :] + r * b[:, 2 * D :]) + z * h
        return h, h

    return jax.lax.scan(step, jnp.zeros((x.shape[0], D)), jnp.swapaxes(x, 0, 1))


def decode(x, cache, position):
    """One token's attention over a cache, into which its row is written."""
    row = (x @ BLOCK["k"])[:, :1]
    cache = jax.lax.dynamic_update_slice(cache, row, (0, position, 0))
    q, k = ((x[:, :1] @ BLOCK["q"]).reshape(2, 1, HEADS, -1), cache.reshape(2, T, HEADS, -1))
    scores = jnp.where(jnp.arange(T) <= position, jnp.einsum("bthd,bshd->bhts", q, k), -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1), k), cache


def mlp(x):
    return jax.nn.log_softmax(jax.nn.relu(x @ BLOCK["up"]) @ BLOCK["down"])


MODELS = {
    "mlp": (mlp, (X,)),
    "transformer": (transformer_block, (X,)),
    "resnet": (residual_block, (IMAGES,)),
    "gru": (gru, (X,)),
    "decode": (decode, (X, np.zeros((2, T, D), np.float32), np.int32(3))),
}


def check(function, arguments, devices, **options):
    with mansard.compile(function, arguments, devices=devices, **options) as model:
        ours = jax.tree_util.tree_leaves(model(*arguments))
    for a, b in zip(ours, jax.tree_util.tree_leaves(function(*arguments)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_matches_jax_on_the_cpu(name):
    check(*MODELS[name], "cpu")


@pytest.mark.vulkan
@pytest.mark.parametrize("name", MODELS)
def test_a_model_matches_jax_on_vulkan(name):
    check(*MODELS[name], "vulkan")


@pytest.mark.vulkan
def test_a_model_matches_jax_when_it_is_split():
    options = PlacementOptions(pins=(("contraction*", "vulkan"),))
    check(*MODELS["transformer"], ("cpu", "vulkan"), placement=options)


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        for name, value in BLOCK.items():
            setattr(self, name, nn.Parameter(torch.from_numpy(value)))

    def forward(self, x):
        h = nn.functional.layer_norm(x, (D,))
        q, k, v = ((h @ w).view(2, T, HEADS, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, T, D)
        x = x + mixed @ self.o
        return x + nn.functional.gelu(nn.functional.layer_norm(x, (D,)) @ self.up) @ self.down


class ResidualBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernels = nn.ParameterList(torch.from_numpy(k.transpose(3, 2, 0, 1).copy()) for k in CONVS)

    def forward(self, x):
        y = torch.relu(nn.functional.conv2d(x, self.kernels[0], padding=1))
        y = nn.functional.conv2d(y, self.kernels[1], padding=1)
        return torch.relu(x + y).mean((2, 3))


@pytest.mark.parametrize("name", ["transformer", "resnet"])
def test_a_model_has_as_many_dispatches_as_in_pytorch(name):
    function, arguments = MODELS[name]
    module, x = (
        (TransformerBlock(), X) if name == "transformer" else (ResidualBlock(), IMAGES.transpose(0, 3, 1, 2))
    )
    ours = mansard.lower(function, arguments, devices="cpu")
    theirs = mansard.lower(module.eval(), (torch.from_numpy(x.copy()),), devices="cpu")
    assert len(ours.dispatches) == len(theirs.dispatches)
