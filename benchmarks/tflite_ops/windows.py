"""Cases of convolutions, products and pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.tflite_ops.cases import Array, Grid, drawn
from benchmarks.tflite_ops.writer import Writer

STORED = {"int8": (0.05, -4), "uint8": (0.05, 120), "int16": (0.0005, 0)}


def enter(grid: Grid) -> None:
    """Add the cases."""
    _convolutions(grid)
    _dense(grid)
    _matmul(grid)
    _pools(grid)


def weights(
    w: Writer, rng: np.random.Generator, shape: tuple[int, ...], kind: str, axis: int, channels: bool
) -> int:
    """A constant of weights: real, per tensor or with a scale for each channel."""
    if kind == "float32":
        return w.constant(rng.standard_normal(shape).astype(np.float32) * 0.4)
    if kind == "uint8":
        return w.constant(rng.integers(0, 256, shape).astype(np.uint8), scale=0.01, zero=131)
    if kind == "int4":
        codes = rng.integers(-7, 8, shape).astype(np.int8).reshape(-1)
        codes = np.append(codes, 0) if codes.size % 2 else codes
        packed = ((codes[0::2] & 15) | (codes[1::2] << 4)).astype(np.int8)
        scales = rng.uniform(0.05, 0.2, shape[axis]).tolist()
        return w.tensor(shape, "int4", data=packed, scale=scales, axis=axis)
    codes = rng.integers(-127, 128, shape).astype(np.int8)
    scale: Any = rng.uniform(0.005, 0.02, shape[axis]).tolist() if channels else 0.01
    return w.constant(codes, scale=scale, axis=axis)


def bias(w: Writer, rng: np.random.Generator, count: int, kind: str) -> int:
    """A constant of biases."""
    if kind == "float32":
        return w.constant(rng.standard_normal(count).astype(np.float32))
    dtype = np.int64 if kind == "int16" else np.int32
    return w.constant(rng.integers(-900, 900, count).astype(dtype), scale=0.0005)


def operand(w: Writer, shape: tuple[int, ...], kind: str) -> int:
    """An input, real or stored."""
    if kind in ("float32", "dynamic"):
        return w.input(shape)
    scale, zero = STORED[kind]
    return w.input(shape, kind, scale=scale, zero=zero)


def result(w: Writer, shape: tuple[int, ...], kind: str, depth: int) -> int:
    """A result, real or stored at a scale that fits sums of so many products."""
    if kind in ("float32", "dynamic"):
        return w.tensor(shape)
    scale, zero = STORED[kind]
    return w.tensor(shape, kind, scale=scale * 0.6 * depth**0.5, zero=zero + (2 if zero else 0))


def _values(w: Writer, rng: np.random.Generator) -> list[Array]:
    kinds = {0: "float32", 2: "int32", 3: "uint8", 4: "int64", 7: "int16", 9: "int8"}
    inputs = [w.graph.tensors[i] for i in w.graph.inputs]
    return [drawn(rng, (t.shape, kinds[t.type], *([1.0] if t.quantization else []))) for t in inputs]


KINDS = (
    ("float32", False),
    ("int8", True),
    ("int8", False),
    ("uint8", False),
    ("int16", True),
    ("dynamic", True),
    ("dynamic", False),
)


def _limits(kind: str) -> dict[str, Any]:
    return {"rtol": 5e-3, "atol": 5e-3} if kind == "dynamic" else {}


def _convolutions(grid: Grid) -> None:
    geometries = {
        "1x1": ((1, 1), (1, 1), (1, 1)), "3x3": ((3, 3), (1, 1), (1, 1)), "strided": ((3, 3), (2, 2), (1, 1)),
        "uneven": ((3, 2), (2, 1), (1, 1)), "dilated": ((3, 3), (1, 1), (2, 2)),
    }  # fmt: skip
    for name, geometry in geometries.items():
        for padding in (0, 1):
            for kind, channels in KINDS:
                for activation in (0, 3) if kind in ("float32", "int8") else (0,):
                    what = f"{name}-{('same', 'valid')[padding]}-{kind}{'-channels' * channels}-{activation}"
                    for op in ("CONV_2D", "DEPTHWISE_CONV_2D"):
                        if op.startswith("DEPTH") and kind == "dynamic" and not channels:
                            continue
                        limits = _limits(kind)
                        grid.enter(
                            op,
                            what,
                            _convolution(op, geometry, padding, kind, channels, activation),
                            **limits,
                        )
    for kind, channels in (("float32", False), ("int8", True)):
        grid.enter(
            "CONV_2D",
            f"grouped-{kind}",
            _convolution("CONV_2D", geometries["3x3"], 0, kind, channels, 0, groups=2),
        )
        grid.enter(
            "DEPTHWISE_CONV_2D",
            f"multiplied-{kind}",
            _convolution("DEPTHWISE_CONV_2D", geometries["3x3"], 0, kind, channels, 0, multiplier=2),
        )
        for padding in (0, 1):
            for stride in (1, 2):
                grid.enter(
                    "TRANSPOSE_CONV",
                    f"{padding}-{stride}-{kind}",
                    _transposed(padding, stride, kind, channels),
                )
    for padding in (0, 1):
        grid.enter("CONV_3D", f"{padding}", _volume(padding))
        grid.enter("CONV_3D_TRANSPOSE", f"{padding}", _transposed_volume(padding))


def _out(size: int, taps: int, stride: int, dilation: int, padding: int) -> int:
    reach = dilation * (taps - 1) + 1
    return -(-size // stride) if padding == 0 else (size - reach) // stride + 1


def _convolution(
    op: str, geometry: Any, padding: int, kind: str, channels: bool, activation: int, *,
    groups: int = 1, multiplier: int = 1,
) -> Any:  # fmt: skip
    kernel, strides, dilations = geometry

    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        depth, filters, (height, width) = 4, 6, (9, 8)
        x = operand(w, (2, height, width, depth), kind)
        weight_kind = {"dynamic": "int8", "int16": "int8"}.get(kind, kind)
        bias_kind = "float32" if kind in ("float32", "dynamic") else kind
        if op == "CONV_2D":
            shape, axis, terms = (
                (filters, *kernel, depth // groups),
                0,
                kernel[0] * kernel[1] * depth // groups,
            )
        else:
            filters = depth * multiplier
            shape, axis, terms = (1, *kernel, filters), 3, kernel[0] * kernel[1]
        operands = [x, weights(w, rng, shape, weight_kind, axis, channels), bias(w, rng, filters, bias_kind)]
        sizes = [
            _out(s, *g, padding)
            for s, g in zip((height, width), zip(kernel, strides, dilations, strict=True), strict=True)
        ]
        y = result(w, (2, *sizes, filters), kind, terms)
        options = {"depth_multiplier": multiplier} if op.startswith("DEPTH") else {}
        w.op(
            op,
            operands,
            [y],
            padding=padding,
            stride_h=strides[0],
            stride_w=strides[1],
            dilation_h_factor=dilations[0],
            dilation_w_factor=dilations[1],
            fused_activation_function=activation,
            **options,
        )
        w.outputs(y)
        return w.bytes(), _values(w, rng)

    return build


def _transposed(padding: int, stride: int, kind: str, channels: bool) -> Any:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        x = operand(w, (1, 5, 4, 3), kind)
        size = [5 * stride, 4 * stride] if padding == 0 else [(n - 1) * stride + 3 for n in (5, 4)]
        shape = w.constant(np.array([1, *size, 2], np.int32))
        y = result(w, (1, *size, 2), kind, 27)
        operands = [shape, weights(w, rng, (2, 3, 3, 3), kind, 0, channels), x]
        w.op("TRANSPOSE_CONV", operands, [y], padding=padding, stride_h=stride, stride_w=stride)
        w.outputs(y)
        return w.bytes(), _values(w, rng)

    return build


def _volume(padding: int) -> Any:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        x = w.input((1, 5, 4, 4, 2))
        sizes = [_out(n, 2, s, 1, padding) for n, s in zip((5, 4, 4), (1, 2, 1), strict=True)]
        kernel = w.constant(rng.standard_normal((2, 2, 2, 2, 3)).astype(np.float32))
        y = w.tensor((1, *sizes, 3))
        w.op(
            "CONV_3D",
            [x, kernel, bias(w, rng, 3, "float32")],
            [y],
            padding=padding,
            stride_d=1,
            stride_h=2,
            stride_w=1,
        )
        w.outputs(y)
        return w.bytes(), _values(w, rng)

    return build


def _transposed_volume(padding: int) -> Any:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        x = w.input((1, 2, 3, 2, 2))
        sizes = [n * 2 if padding == 0 else (n - 1) * 2 + 3 for n in (2, 3, 2)]
        kernel = w.constant(rng.standard_normal((3, 3, 3, 4, 2)).astype(np.float32))
        y = w.tensor((1, *sizes, 4))
        operands = [w.constant(np.array([1, *sizes, 4], np.int32)), kernel, x]
        w.op("CONV_3D_TRANSPOSE", operands, [y], padding=padding, stride_d=2, stride_h=2, stride_w=2)
        w.outputs(y)
        return w.bytes(), _values(w, rng)

    return build


def _dense(grid: Grid) -> None:
    for lead in ((1,), (4,), (2, 3)):
        for keep in (False, True):
            for kind, channels in (*KINDS, ("int4", True)):
                what = f"{'x'.join(map(str, lead))}-{keep}-{kind}{'-channels' * channels}"
                grid.enter("FULLY_CONNECTED", what, _dense_case(lead, keep, kind, channels), **_limits(kind))
    for asymmetric in (True, False):
        case = _dense_case((3,), False, "dynamic", False, asymmetric=asymmetric)
        grid.enter("FULLY_CONNECTED", f"dynamic-asymmetric-{asymmetric}", case, rtol=5e-3, atol=5e-3)


def _dense_case(
    lead: tuple[int, ...], keep: bool, kind: str, channels: bool, *, asymmetric: bool = False
) -> Any:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        act = "int8" if kind == "int4" else kind
        x = operand(w, (*lead, 13), act)
        weight_kind = {"dynamic": "int8", "int16": "int8"}.get(kind, kind)
        bias_kind = "float32" if kind in ("float32", "dynamic") else act
        rows = lead if keep else (int(np.prod(lead)),)
        y = result(w, (*rows, 5), act, 13)
        operands = [x, weights(w, rng, (5, 13), weight_kind, 0, channels), bias(w, rng, 5, bias_kind)]
        w.op("FULLY_CONNECTED", operands, [y], keep_num_dims=keep, asymmetric_quantize_inputs=asymmetric)
        w.outputs(y)
        return w.bytes(), _values(w, rng)

    return build


def _matmul(grid: Grid) -> None:
    for batch in ((), (2,), (2, 3)):
        for adj_x in (False, True):
            for adj_y in (False, True):
                a, b = (4, 5) if not adj_x else (5, 4), (5, 3) if not adj_y else (3, 5)
                if not batch and (adj_x or adj_y):
                    continue
                what = f"{'x'.join(map(str, batch))}-{adj_x}-{adj_y}"
                shapes = [(*batch, *a), (*batch, *b)]
                options = {"adj_x": adj_x, "adj_y": adj_y}
                grid.op(
                    "BATCH_MATMUL",
                    f"{what}-float32",
                    [(s, "float32") for s in shapes],
                    [((*batch, 4, 3), "float32")],
                    **options,
                )
                stored = [(shapes[0], "int8", 0.05, 3), (shapes[1], "int8", 0.04, -6)]
                grid.op("BATCH_MATMUL", f"{what}-int8", stored, [((*batch, 4, 3), "int8", 0.2, 5)], **options)
    grid.op(
        "BATCH_MATMUL",
        "broadcast",
        [((2, 1, 4, 5), "float32"), ((3, 5, 2), "float32")],
        [((2, 3, 4, 2), "float32")],
        adj_x=False,
        adj_y=False,
    )


def _pools(grid: Grid) -> None:
    for op in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
        for padding in (0, 1):
            for taps, stride in ((2, 2), (3, 1), (3, 2)):
                sizes = [_out(n, taps, stride, 1, padding) for n in (7, 6)]
                options = {
                    "padding": padding,
                    "stride_h": stride,
                    "stride_w": stride,
                    "filter_height": taps,
                    "filter_width": taps,
                }
                kinds = ("float32",) if op.startswith("L2") else ("float32", "int8", "uint8", "int16")
                for kind in kinds:
                    for activation in (0, 3) if kind != "int16" else (0,):
                        q = STORED.get(kind, ())
                        grid.op(
                            op,
                            f"{taps}-{stride}-{padding}-{kind}-{activation}",
                            [((2, 7, 6, 3), kind, *q)],
                            [((2, *sizes, 3), kind, *q)],
                            fused_activation_function=activation,
                            **options,
                        )
