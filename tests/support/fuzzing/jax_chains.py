"""Random chains of functions of JAX, against JAX on its CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from support.fuzzing.case import Array
from support.fuzzing.chains import Chain, Framework, Step, grow, shape_of
from support.fuzzing.structured import Draw


def _functions() -> dict[str, Callable[[Any], Any]]:
    import jax
    import jax.numpy as jnp

    last = -1
    return {
        "abs": jnp.abs,
        "tanh": jnp.tanh,
        "sin": jnp.sin,
        "exp": jnp.exp,
        "log1p": lambda x: jnp.log1p(jnp.abs(x)),
        "sqrt": lambda x: jnp.sqrt(jnp.abs(x)),
        "floor": jnp.floor,
        "round": jnp.round,
        "sign": jnp.sign,
        "square": jnp.square,
        "reciprocal": lambda x: 1 / (x * x + 1),
        "expm1": jnp.expm1,
        "sigmoid": jax.nn.sigmoid,
        "gelu": jax.nn.gelu,
        "relu": jax.nn.relu,
        "silu": jax.nn.silu,
        "softplus": jax.nn.softplus,
        "erf": jax.scipy.special.erf,
        "lgamma": lambda x: jax.scipy.special.gammaln(jnp.abs(x) + 1),
        "digamma": lambda x: jax.scipy.special.digamma(jnp.abs(x) + 1),
        "clip": lambda x: jnp.clip(x, -1, 1.5),
        "where": lambda x: jnp.where(x > 0, x, x * 0.5),
        "power": lambda x: jnp.power(jnp.abs(x) + 0.5, 1.5),
        "softmax": jax.nn.softmax,
        "log_softmax": jax.nn.log_softmax,
        "cumsum": lambda x: jnp.cumsum(x, last),
        "cumprod": lambda x: jnp.cumprod(x, last),
        "sort": lambda x: jnp.sort(x, last),
        "sum": lambda x: x.sum(last),
        "mean": lambda x: x.mean(0, keepdims=True),
        "max": lambda x: x.max(0),
        "prod": lambda x: x.prod(last, keepdims=True),
        "argmax": lambda x: jnp.argmax(x, last).astype(jnp.float32),
        "std": lambda x: x.std(last),
        "logsumexp": lambda x: jax.nn.logsumexp(x, 0),
        "median": lambda x: jnp.median(x, 0),
        "transpose": jnp.transpose,
        "flip": lambda x: jnp.flip(x, last),
        "roll": lambda x: jnp.roll(x, 1, last),
        "reshape": lambda x: x.reshape(-1),
        "row": lambda x: x.reshape(1, -1),
        "expand": lambda x: x[None],
        "concatenate": lambda x: jnp.concatenate([x, x * 2], last),
        "stack": lambda x: jnp.stack([x, -x], 1),
        "pad": lambda x: jnp.pad(x, 1, mode="edge"),
        "reflect": lambda x: jnp.pad(x, 1, mode="reflect"),
        "tile": lambda x: jnp.tile(x, 2),
        "repeat": lambda x: jnp.repeat(x, 2, 0),
        "slice": lambda x: x[::-2],
        "strided": lambda x: x[..., ::2],
        "take": lambda x: jnp.take(x, jnp.array([0, -1, 0]), 0),
        "diff": lambda x: jnp.diff(x, axis=last),
        "outer": lambda x: jnp.outer(x, x),
        "tril": jnp.tril,
        "matmul": lambda x: x @ x.swapaxes(-1, -2),
        "dot": lambda x: jnp.dot(x, jnp.ones((x.shape[-1], 2))),
        "einsum": lambda x: jnp.einsum("...i,...i->...", x, x),
        "at": lambda x: x.at[0].add(1.5),
        "scan": lambda x: jax.lax.scan(lambda c, y: (c + y, c * y), x[0] * 0, x)[1],
        "window": lambda x: jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (2,) * x.ndim, (1,) * x.ndim, "VALID"
        ),
        "searchsorted": lambda x: jnp.searchsorted(jnp.sort(x.reshape(-1)), x.reshape(-1)).astype(
            jnp.float32
        ),
        "convolve": lambda x: jnp.convolve(x.reshape(-1), jnp.array([1.0, -2.0, 0.5])),
        "interp": lambda x: jnp.interp(x, jnp.array([-1.0, 0.0, 2.0]), jnp.array([3.0, -1.0, 0.5])),
    }


def function_of(chain: Chain) -> Callable[[Any], Any]:
    """The chain as a function."""
    functions = _functions()

    def run(x: Any) -> Any:
        for step in chain.steps:
            x = functions[step.op](x)
        return x

    return run


def model_of(chain: Chain) -> Any:
    """The chain as a function that JAX traces."""
    import jax

    return jax.jit(function_of(chain))


def evaluate(chain: Chain) -> Array:
    """JAX's result."""
    import jax

    with jax.default_device(jax.devices("cpu")[0]):
        return np.asarray(function_of(chain)(chain.x))


FRAMEWORK = Framework(model_of, evaluate, lambda chain: {"example_inputs": (chain.x,)})


@st.composite
def chains(draw: Draw) -> Chain:
    """Up to six steps on a tensor of up to four dims."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = list(_functions())
    x = np.asarray(rng.integers(-8, 9, shape_of(rng)) / 4, np.float32)

    def choose(value: Array) -> Step | None:
        return Step(names[int(rng.integers(0, len(names)))]) if value.ndim else None

    return grow("jax", x, 1 + int(rng.integers(0, 6)), choose, evaluate)
