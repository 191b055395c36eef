"""Small graphs of quantised named ops: what the tests of the TOSA writer, and of its vendors, run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mansard.dtypes import DType
from mansard.ir.types import Constant, TensorType, Value
from mansard.regions.named import (
    Concat,
    Conv,
    Elementwise,
    Encoding,
    MatMul,
    NamedGraph,
    Pad,
    Pool,
    Recode,
    Reduce,
    Reshape,
    Resize,
    Slice,
    Transpose,
)

U8, I8, I16, F32 = DType.U8, DType.I8, DType.I16, DType.F32
_STORED = {np.dtype(np.int8): I8, np.dtype(np.float32): F32}


def encoding(scale: float, zero: int = 0) -> Encoding:
    return Encoding((scale,), zero)


class Sketch:
    """A graph that is being put together; ops are appended by their results."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.inputs, self.ops, self.constants, self.encodings, self.count = [], [], {}, {}, 0

    def value(self, shape, dtype, encoded=None) -> Value:
        self.count += 1
        value = Value(f"v{self.count}", TensorType(tuple(shape), dtype))
        if encoded is not None:
            self.encodings[value] = encoded
        return value

    def input(self, shape, dtype, encoded=None) -> Value:
        self.inputs.append(self.value(shape, dtype, encoded))
        return self.inputs[-1]

    def constant(self, array, encoded=None) -> Value:
        value = self.value(array.shape, _STORED[array.dtype], encoded)
        self.constants[value] = Constant.of(array)
        return value

    def add(self, named, inputs, shape, dtype, encoded=None, **attributes) -> Value:
        output = self.value(shape, dtype, encoded)
        self.ops.append(named(tuple(inputs), output, **attributes))
        return output

    def conv(self, x, channels, window, encoded, dtype=U8, *, stride=1, groups=1, **attributes) -> Value:
        n, height, width, depth = x.type.shape
        shape = (channels, window, window, depth // groups)
        weights = self.rng.integers(-127, 128, shape).astype(np.int8)
        scales = Encoding(tuple(self.rng.uniform(0.001, 0.02, channels)), 0, 0)
        bias = self.constant(self.rng.standard_normal(channels).astype(np.float32))
        pad = window // 2
        size = [(extent + 2 * pad - window) // stride + 1 for extent in (height, width)]
        return self.add(
            Conv, (x, self.constant(weights, scales), bias), (n, *size, channels), dtype, encoded,
            strides=(stride, stride), dilations=(1, 1), pads=((pad, pad), (pad, pad)), groups=groups,
            **attributes,
        )  # fmt: skip

    def graph(self, *outputs) -> NamedGraph:
        return NamedGraph(
            "sample", tuple(self.inputs), outputs, tuple(self.ops), self.constants, self.encodings
        )

    def arrays(self) -> list[np.ndarray]:
        """Inputs of the graph."""
        bounds = [np.iinfo(v.type.dtype.numpy) for v in self.inputs]
        return [
            self.rng.integers(bound.min, bound.max + 1, v.type.shape).astype(bound.dtype)
            for v, bound in zip(self.inputs, bounds, strict=True)
        ]


def samples() -> Iterator[tuple[str, Sketch, NamedGraph]]:
    """Graphs by name."""
    yield from _products()
    yield from _numbers()
    yield from _images()
    yield from _wide()


def _products() -> Iterator[tuple[str, Sketch, NamedGraph]]:
    s = Sketch()
    x = s.input((1, 9, 9, 8), U8, encoding(0.02, 128))
    yield "convolution", s, s.graph(s.conv(x, 16, 3, encoding(0.05, 3), stride=2))
    s = Sketch()
    x = s.input((1, 8, 8, 8), I8, encoding(0.02, -5))
    y = s.conv(x, 8, 3, encoding(0.05, -3), I8, stride=2, groups=8, clamp=(0.0, 6.0))
    yield "depthwise", s, s.graph(y)
    s = Sketch()
    x = s.input((1, 8, 8, 8), I8, encoding(0.02, -5))
    yield "groups", s, s.graph(s.conv(x, 8, 3, encoding(0.05, -3), I8, groups=2))
    s = Sketch()
    x = s.input((1, 9, 8), I8, encoding(0.02, -5))
    weights = s.constant(s.rng.integers(-127, 128, (6, 3, 8)).astype(np.int8), encoding(0.01))
    one = {"strides": (1,), "dilations": (1,), "pads": ((1, 1),)}
    yield "one dim", s, s.graph(s.add(Conv, (x, weights), (1, 9, 6), I8, encoding(0.1), **one))
    s = Sketch()
    x = s.input((1, 8, 8, 8), U8, encoding(0.02, 128))
    branches = [s.conv(x, 8, 1, None, F32), s.conv(x, 8, 3, None, F32, clamp=(0.0, 6.0))]
    total = s.add(Elementwise, branches, (1, 8, 8, 8), F32, op="add")
    yield "residual in f32", s, s.graph(s.add(Recode, (total,), (1, 8, 8, 8), U8, encoding(0.1, 100)))
    s = Sketch()
    x = s.input((5, 16), U8, encoding(0.02, 128))
    scales = Encoding(tuple(s.rng.uniform(0.001, 0.02, 10)), 0, 1)
    weights = s.constant(s.rng.integers(-127, 128, (16, 10)).astype(np.int8), scales)
    bias = s.constant(s.rng.standard_normal(10).astype(np.float32))
    yield "dense", s, s.graph(s.add(MatMul, (x, weights, bias), (5, 10), U8, encoding(0.05, 128)))
    s = Sketch()
    factors = s.input((2, 5, 16), I8, encoding(0.02, 3)), s.input((2, 16, 4), U8, encoding(0.02, 30))
    yield "product", s, s.graph(s.add(MatMul, factors, (2, 5, 4), I8, encoding(0.05, 1)))


def _numbers() -> Iterator[tuple[str, Sketch, NamedGraph]]:
    shape = (1, 4, 4, 8)
    for op in ("add", "sub", "mul", "max", "min"):
        s = Sketch()
        x, y = s.input(shape, I8, encoding(0.03, 5)), s.input((1, 1, 1, 8), U8, encoding(0.07, 9))
        real = s.add(Elementwise, (x, y), shape, F32, op=op)
        yield op, s, s.graph(s.add(Recode, (real,), shape, I8, encoding(0.11, -3)))
    s = Sketch()
    x = s.input(shape, U8, encoding(0.03, 120))
    real = s.add(Recode, (x,), shape, F32)
    power = s.add(Elementwise, (s.add(Elementwise, (real,), shape, F32, op="neg"),), shape, F32, op="exp")
    one = s.constant(np.ones((1, 1, 1, 1), np.float32))
    below = s.add(Elementwise, (power, one), shape, F32, op="add")
    silu = s.add(Elementwise, (real, below), shape, F32, op="div")
    yield "silu", s, s.graph(s.add(Recode, (silu,), shape, I8, encoding(0.02, -100)))
    s = Sketch()
    x = s.input(shape, U8, encoding(0.03, 120))
    small = (1, 1, 1, 8)
    mean = s.add(Reduce, (x,), small, U8, encoding(0.02, 128), kind="mean", axes=(1, 2))
    gate = s.add(Elementwise, (s.add(Recode, (mean,), small, F32),), small, F32, op="tanh")
    gated = s.add(Elementwise, (s.add(Recode, (x,), shape, F32), gate), shape, F32, op="mul")
    yield "gate", s, s.graph(s.add(Recode, (gated,), shape, I8, encoding(0.03, 7)), mean)
    for kind in ("max", "add", "mean"):
        s = Sketch()
        x = s.input((3, 5, 7), U8, encoding(0.02, 100))
        result = encoding(0.02, 100) if kind == "max" else encoding(0.1, 90)
        yield f"{kind} of a dim", s, s.graph(s.add(Reduce, (x,), (3, 1, 7), U8, result, kind=kind, axes=(1,)))


def _images() -> Iterator[tuple[str, Sketch, NamedGraph]]:
    for kind in ("max", "average"):
        s = Sketch()
        x = s.input((1, 9, 9, 8), U8, encoding(0.03, 120))
        window = {"window": (3, 3), "strides": (2, 2), "dilations": (1, 1), "pads": ((1, 1), (1, 1))}
        pooled = s.add(Pool, (x,), (1, 5, 5, 8), U8, encoding(0.03, 120), kind=kind, **window)
        yield f"{kind} of windows", s, s.graph(pooled)
    s = Sketch()
    e = encoding(0.03, 20)
    x, y = s.input((1, 4, 6, 8), U8, encoding(0.02, 3)), s.input((1, 4, 6, 4), U8, encoding(0.03, 30))
    joined = s.add(Concat, (x, y), (1, 4, 6, 12), U8, e, axis=3)
    turned = s.add(Transpose, (joined,), (1, 6, 4, 12), U8, e, permutation=(0, 2, 1, 3))
    flat = s.add(Reshape, (turned,), (1, 24, 12), U8, e)
    part = s.add(Slice, (flat,), (1, 11, 12), U8, e, starts=(0, 1, 0), strides=(1, 2, 1))
    padded = s.add(Pad, (part,), (1, 13, 12), U8, e, low=(0, 1, 0), high=(0, 1, 0), value=0.0)
    yield "moves", s, s.graph(padded, turned)
    for mode in ("nearest", "linear"):
        for coordinates in ("half_pixel", "align_corners", "asymmetric"):
            s = Sketch()
            x = s.input((1, 5, 4, 3), U8, encoding(0.02, 100))
            how = {"mode": mode, "coordinates": coordinates}
            resized = s.add(Resize, (x,), (1, 10, 9, 3), U8, encoding(0.02, 100), **how)
            other = s.add(Resize, (resized,), (1, 7, 31, 3), U8, encoding(0.03, 90), **how)
            yield f"{mode} {coordinates}", s, s.graph(resized, other)


def _wide() -> Iterator[tuple[str, Sketch, NamedGraph]]:
    """16-bit values with 8-bit weights."""
    e = encoding(3e-4)
    s = Sketch()
    x = s.input((1, 8, 8, 8), I16, e)
    y = s.conv(x, 8, 3, encoding(2e-3), I16, stride=2, clamp=(0.0, 40.0))
    deep = s.conv(y, 8, 3, encoding(2e-3), I16, groups=8)
    total = s.add(Elementwise, (y, deep), (1, 4, 4, 8), I16, encoding(3e-3), op="add")
    window = {"window": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pads": ((0, 0), (0, 0))}
    pooled = s.add(Pool, (total,), (1, 2, 2, 8), I16, encoding(3e-3), kind="max", **window)
    how = {"mode": "linear", "coordinates": "half_pixel"}
    wide = s.add(Resize, (pooled,), (1, 5, 3, 8), I16, encoding(3e-3), **how)
    mean = s.add(Reduce, (wide,), (1, 1, 1, 8), I8, encoding(0.5, 3), kind="mean", axes=(1, 2))
    yield "16 bits", s, s.graph(y, total, wide, mean)
    s = Sketch()
    x = s.input((5, 16), I16, e)
    scales = Encoding(tuple(s.rng.uniform(0.001, 0.02, 10)), 0, 1)
    weights = s.constant(s.rng.integers(-127, 128, (16, 10)).astype(np.int8), scales)
    yield "16 bits dense", s, s.graph(s.add(MatMul, (x, weights), (5, 10), I16, encoding(2e-3)))
    s = Sketch()
    x = s.input((1, 9, 8), I16, e)
    weights = s.constant(s.rng.integers(-127, 128, (6, 3, 8)).astype(np.int8), encoding(0.01))
    one = {"strides": (1,), "dilations": (1,), "pads": ((1, 1),)}
    sums = s.add(Conv, (x, weights), (1, 9, 6), F32, None, **one)
    gate = s.input((1, 1, 6), I8, encoding(0.02, 5))
    yield (
        "16 bits one dim",
        s,
        s.graph(s.add(Elementwise, (sums, gate), (1, 9, 6), I16, encoding(1e-3), op="mul")),
    )
    s = Sketch()
    factors = s.input((2, 5, 16), I16, e), s.input((2, 16, 4), I16, e)
    yield "16 bits product", s, s.graph(s.add(MatMul, factors, (2, 5, 4), I16, encoding(0.02)))
