"""Cases of elementwise operators, activations, conversions, comparisons and reductions."""

from __future__ import annotations

import numpy as np

from benchmarks.tflite_ops.cases import Grid, between

INT8 = ("int8", 0.05, 3)
TYPES = {"int8": (0.04, -7), "uint8": (0.04, 121), "int16": (0.0004, 0)}
PAIRS = {
    "same": ((2, 3, 4), (2, 3, 4)),
    "row": ((2, 3, 4), (4,)),
    "column": ((2, 3, 1), (1, 1, 4)),
    "number": ((2, 5), ()),
}


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return np.broadcast_shapes(a, b)


def enter(grid: Grid) -> None:
    """Add the cases."""
    _binary(grid)
    _unary(grid)
    _comparisons(grid)
    _reductions(grid)
    _conversions(grid)
    _softmax(grid)


def _binary(grid: Grid) -> None:
    for op in ("ADD", "SUB", "MUL", "DIV"):
        for what, (a, b) in PAIRS.items():
            values = between(0.5, 4) if op == "DIV" else None
            for number, activation in enumerate(("none", "relu", "relu1", "relu6")):
                grid.op(
                    op,
                    f"{what}-{activation}",
                    [(a, "float32"), (b, "float32")],
                    [(_common(a, b), "float32")],
                    values=values,
                    fused_activation_function=number,
                )
            whole = ("int32", "int64") if op != "DIV" else ("int32",)
            for dtype in whole:
                draw = between(1, 9) if op == "DIV" else None
                grid.op(
                    op,
                    f"{what}-{dtype}",
                    [(a, dtype), (b, dtype)],
                    [(_common(a, b), dtype)],
                    values=draw,
                    fused_activation_function=0,
                )
            stored = [t for t in TYPES if op != "DIV" or t == "uint8"]
            for dtype in stored:
                scale, zero = TYPES[dtype]
                for number, activation in ((0, "none"), (1, "relu"), (3, "relu6")):
                    first, second = (
                        (a, dtype, scale, zero),
                        (b, dtype, scale * 1.5, zero + (1 if zero else 0)),
                    )
                    grown = scale * (3 if op != "DIV" else 0.5)
                    out = (_common(a, b), dtype, grown, zero)
                    draw = between(140, 250) if op == "DIV" else None
                    grid.op(
                        op,
                        f"{what}-{dtype}-{activation}",
                        [first, second],
                        [out],
                        values=draw,
                        fused_activation_function=number,
                    )
    for op in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"):
        for what, (a, b) in PAIRS.items():
            for dtype in ("float32", "int32"):
                grid.op(op, f"{what}-{dtype}", [(a, dtype), (b, dtype)], [(_common(a, b), dtype)])
            first, second = (a, *INT8), (b, *INT8)
            out = (_common(a, b), *INT8) if op != "SQUARED_DIFFERENCE" else (_common(a, b), "int8", 0.5, -128)
            grid.op(op, f"{what}-int8", [first, second], [out])
    for op in ("FLOOR_DIV", "FLOOR_MOD"):
        for dtype in ("float32", "int32", "int64")[: 3 if op == "FLOOR_MOD" else 2]:
            for sign in (1, -1):
                grid.op(
                    op, f"{dtype}-{sign}", [((3, 4), dtype), (np.full(4, 3 * sign, dtype))], [((3, 4), dtype)]
                )
    grid.op(
        "POW",
        "float",
        [((3, 4), "float32"), ((4,), "float32")],
        [((3, 4), "float32")],
        values=between(0.2, 3),
    )
    grid.op("POW", "int", [((3, 4), "int32"), ((4,), "int32")], [((3, 4), "int32")], values=between(0, 4))
    grid.op("ATAN2", "float", [((3, 4), "float32"), ((3, 4), "float32")], [((3, 4), "float32")])
    for dtype in ("int8", "int16", "int32", "uint8"):
        for op in ("BITWISE_XOR", "RIGHT_SHIFT"):
            grid.op(op, dtype, [((3, 4), dtype), ((3, 4), dtype)], [((3, 4), dtype)], values=between(0, 7))
    for op in ("LOGICAL_AND", "LOGICAL_OR"):
        grid.op(op, "bool", [((3, 4), "bool"), ((4,), "bool")], [((3, 4), "bool")])
    for count in (2, 3, 5):
        for dtype in ("float32", "int32"):
            grid.op("ADD_N", f"{count}-{dtype}", [((2, 3), dtype)] * count, [((2, 3), dtype)])


_FLOATS = {
    "FLOOR": None, "CEIL": None, "ROUND": None, "EXP": None, "LOG": (0.1, 9), "SQRT": (0, 9),
    "RSQRT": (0.1, 9), "SIN": None, "COS": None,
    "ABS": None, "NEG": None, "SIGN": None, "SQUARE": None, "RELU": None,
    "RELU6": (-3, 9), "RELU_N1_TO_1": None, "RELU_0_TO_1": None, "LOGISTIC": None, "TANH": None, "ELU": None,
    "HARD_SWISH": (-5, 5), "ZEROS_LIKE": None,
}  # fmt: skip


def _unary(grid: Grid) -> None:
    for op, limits in _FLOATS.items():
        for shape in ((5,), (2, 3, 4), (1, 3, 3, 7), ()):
            values = between(*limits) if limits else None
            grid.op(
                op,
                f"{'x'.join(map(str, shape)) or 'number'}",
                [(shape, "float32")],
                [(shape, "float32")],
                values=values,
            )
    for op in ("ABS", "NEG", "ZEROS_LIKE", "SIGN"):
        grid.op(op, "int32", [((3, 4), "int32")], [((3, 4), "int32")])
    grid.op("LOGICAL_NOT", "bool", [((3, 4), "bool")], [((3, 4), "bool")])
    for approximate in (False, True):
        grid.op(
            "GELU",
            f"float-{approximate}",
            [((2, 9), "float32")],
            [((2, 9), "float32")],
            approximate=approximate,
            limits={"atol": 1e-4},
        )
        grid.op(
            "GELU",
            f"int8-{approximate}",
            [((40,), "int8", 0.05, 3)],
            [((40,), "int8", 0.03, -100)],
            approximate=approximate,
        )
    fixed = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
    for op in ("LOGISTIC", "TANH"):
        scale, zero = fixed[op]
        for source in (0.02, 0.07, 0.15):
            grid.op(op, f"int8-{source}", [((64,), "int8", source, 5)], [((64,), "int8", scale, zero)])
            grid.op(
                op, f"uint8-{source}", [((64,), "uint8", source, 99)], [((64,), "uint8", scale, zero + 128)]
            )
        grid.op(
            op,
            "int16",
            [((64,), "int16", 1 / 4096, 0)],
            [((64,), "int16", 1 / 32768, 0)],
            limits={"steps": 4},
        )
    for op, out in {
        "RELU": (0.05, -128), "RELU6": (6 / 255, -128), "RELU_N1_TO_1": (1 / 128, 0), "ELU": (0.05, -100),
        "HARD_SWISH": (0.04, -110), "ABS": (0.05, -128), "EXP": (0.2, -128),
    }.items():  # fmt: skip
        for zero in (3, -20):
            grid.op(op, f"int8-{zero}", [((64,), "int8", 0.03, zero)], [((64,), "int8", *out)])
    grid.op(
        "RSQRT",
        "int8",
        [((64,), "int8", 0.03, -128)],
        [((64,), "int8", 0.05, -128)],
        values=between(-100, 127),
    )
    grid.op(
        "LOG", "int8", [((64,), "int8", 0.03, -128)], [((64,), "int8", 0.03, 0)], values=between(-100, 127)
    )
    for alpha in (0.1, 0.3, 1.5):
        grid.op("LEAKY_RELU", f"float-{alpha}", [((3, 5), "float32")], [((3, 5), "float32")], alpha=alpha)
        grid.op(
            "LEAKY_RELU",
            f"int8-{alpha}",
            [((64,), "int8", 0.05, 4)],
            [((64,), "int8", 0.08, -9)],
            alpha=alpha,
        )
        grid.op(
            "LEAKY_RELU",
            f"int16-{alpha}",
            [((64,), "int16", 0.0005, 0)],
            [((64,), "int16", 0.0008, 0)],
            alpha=alpha,
        )
    for slope in ((3,), (1, 1, 3), (2, 2, 3)):
        what = "x".join(map(str, slope))
        grid.op(
            "PRELU",
            f"float-{what}",
            [((1, 2, 2, 3), "float32"), (slope, "float32")],
            [((1, 2, 2, 3), "float32")],
        )
        grid.op(
            "PRELU",
            f"int8-{what}",
            [((1, 2, 2, 3), "int8", 0.05, 4), (slope, "int8", 0.01, -3)],
            [((1, 2, 2, 3), "int8", 0.06, 1)],
        )


def _comparisons(grid: Grid) -> None:
    for op in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
        for dtype in ("float32", "int32", "int64"):
            grid.op(op, dtype, [((3, 4), dtype), ((4,), dtype)], [((3, 4), "bool")], values=between(-2, 2.9))
        grid.op(
            op,
            "int8",
            [((30,), "int8", 0.05, 4), ((30,), "int8", 0.05, 4)],
            [((30,), "bool")],
            values=between(0, 3),
        )
        grid.op(
            op,
            "broadcast",
            [((1, 4), "float32"), ((3, 1), "float32")],
            [((3, 4), "bool")],
            values=between(-2, 3),
        )
    for dtype in ("float32", "int32", "int8"):
        q = (0.05, 3) if dtype == "int8" else ()
        grid.op(
            "SELECT_V2",
            dtype,
            [((3, 1), "bool"), ((3, 4), dtype, *q), ((4,), dtype, *q)],
            [((3, 4), dtype, *q)],
        )
        grid.op(
            "SELECT",
            dtype,
            [((3, 4), "bool"), ((3, 4), dtype, *q), ((3, 4), dtype, *q)],
            [((3, 4), dtype, *q)],
        )
    grid.op(
        "SELECT", "rows", [((3,), "bool"), ((3, 4), "float32"), ((3, 4), "float32")], [((3, 4), "float32")]
    )


def _reductions(grid: Grid) -> None:
    shape = (2, 3, 4, 5)
    for axes in ([0], [1, 2], [-1], [0, 1, 2, 3], [1, 3]):
        for keep in (False, True):
            kept = _reduced(shape, axes, keep)
            what = f"{'_'.join(map(str, axes))}-{keep}"
            axis = np.array(axes, np.int32)
            for op in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
                grid.op(
                    op,
                    f"{what}-float",
                    [(shape, "float32"), axis],
                    [(kept, "float32")],
                    keep_dims=keep,
                    limits={"rtol": 2e-4},
                )
                if op in ("SUM", "REDUCE_MAX"):
                    grid.op(op, f"{what}-int32", [(shape, "int32"), axis], [(kept, "int32")], keep_dims=keep)
            for op in ("MEAN", "SUM"):
                out = (0.05, 3) if op == "MEAN" else (1.5, -3)
                grid.op(
                    op,
                    f"{what}-int8",
                    [(shape, "int8", 0.05, 3), axis],
                    [(kept, "int8", *out)],
                    keep_dims=keep,
                    limits={"reference": op == "MEAN"},
                )
            grid.op(
                "MEAN",
                f"{what}-rescaled",
                [(shape, "int8", 0.05, 3), axis],
                [(kept, "int8", 0.01, -9)],
                keep_dims=keep,
            )
            for op in ("REDUCE_MAX", "REDUCE_MIN"):
                grid.op(
                    op,
                    f"{what}-int8",
                    [(shape, "int8", 0.05, 3), axis],
                    [(kept, "int8", 0.05, 3)],
                    keep_dims=keep,
                )
            for op in ("REDUCE_ANY", "REDUCE_ALL"):
                grid.op(op, what, [(shape, "bool"), axis], [(kept, "bool")], keep_dims=keep)
    for op in ("ARG_MAX", "ARG_MIN"):
        for axis in (0, 1, -1):
            for dtype in ("float32", "int32", "int8"):
                q = (0.05, 3) if dtype == "int8" else ()
                for to, number in (("int32", 2), ("int64", 4)):
                    kept = _reduced((2, 3, 4), [axis], False)
                    grid.op(
                        op,
                        f"{axis}-{dtype}-{to}",
                        [((2, 3, 4), dtype, *q), np.array(axis, np.int32)],
                        [(kept, to)],
                        output_type=number,
                    )
    for exclusive in (False, True):
        for reverse in (False, True):
            for axis in (0, 1, -1):
                for dtype in ("float32", "int32"):
                    grid.op(
                        "CUMSUM",
                        f"{axis}-{exclusive}-{reverse}-{dtype}",
                        [((3, 4, 5), dtype), np.array(axis, np.int32)],
                        [((3, 4, 5), dtype)],
                        exclusive=exclusive,
                        reverse=reverse,
                    )
    for dtype in ("float32", "int32", "int8"):
        q = (0.05, 3) if dtype == "int8" else ()
        for k in (1, 3):
            grid.op(
                "TOPK_V2",
                f"{dtype}-{k}",
                [((2, 9), dtype, *q), np.array(k, np.int32)],
                [((2, k), dtype, *q), ((2, k), "int32")],
                values=_distinct,
            )


def _distinct(rng: np.random.Generator, spec: tuple) -> np.ndarray:  # type: ignore[type-arg]
    return np.stack([rng.permutation(spec[0][1]) - 4 for _ in range(spec[0][0])]).astype(spec[1])


def _reduced(shape: tuple[int, ...], axes: list[int], keep: bool) -> tuple[int, ...]:
    dropped = {a % len(shape) for a in axes}
    return tuple(1 if i in dropped else d for i, d in enumerate(shape) if keep or i not in dropped)


def _conversions(grid: Grid) -> None:
    kinds = ("float32", "int32", "int64", "int8", "uint8", "int16", "bool")
    numbers = {"float32": 0, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7, "int8": 9}
    for a in kinds:
        for b in kinds:
            if a != b:
                grid.op(
                    "CAST",
                    f"{a}-{b}",
                    [((3, 4), a)],
                    [((3, 4), b)],
                    values=between(0, 2 if a == "bool" else 9),
                    in_data_type=numbers[a],
                    out_data_type=numbers[b],
                )
    for dtype, (scale, zero) in TYPES.items():
        grid.op("QUANTIZE", dtype, [((50,), "float32")], [((50,), dtype, scale, zero)])
        grid.op("DEQUANTIZE", dtype, [((50,), dtype, scale, zero)], [((50,), "float32")])
    grid.op("DEQUANTIZE", "float16", [((50,), "float16")], [((50,), "float32")])
    for a, b in (
        ("int8", "uint8"),
        ("uint8", "int8"),
        ("int8", "int8"),
        ("int16", "int8"),
        ("int16", "int16"),
    ):
        target = (0.07, 0) if b == "int16" else (0.06, TYPES[b][1] + 2)
        grid.op("QUANTIZE", f"{a}-{b}", [((60,), a, *TYPES[a])], [((60,), b, *target)])
    grid.op("FAKE_QUANT", "8", [((60,), "float32")], [((60,), "float32")], min=-1.5, max=3.0, num_bits=8)
    grid.op("BITCAST", "float", [((6,), "float32")], [((6,), "int32")])
    for dtype, (scale, zero) in TYPES.items():
        if dtype != "uint8":
            grid.op("DEQUANTIZE", f"{dtype}-matrix", [((5, 7), dtype, scale, zero)], [((5, 7), "float32")])


def _softmax(grid: Grid) -> None:
    for shape in ((1, 10), (3, 7), (2, 3, 5), (1, 2, 2, 9)):
        what = "x".join(map(str, shape))
        for beta in (1.0, 0.5):
            grid.op("SOFTMAX", f"{what}-{beta}", [(shape, "float32")], [(shape, "float32")], beta=beta)
            grid.op(
                "SOFTMAX",
                f"{what}-{beta}-int8",
                [(shape, "int8", 0.08, 3)],
                [(shape, "int8", 1 / 256, -128)],
                beta=beta,
            )
            grid.op(
                "SOFTMAX",
                f"{what}-{beta}-uint8",
                [(shape, "uint8", 0.08, 131)],
                [(shape, "uint8", 1 / 256, 0)],
                beta=beta,
            )
        grid.op("LOG_SOFTMAX", what, [(shape, "float32")], [(shape, "float32")])
        grid.op("LOG_SOFTMAX", f"{what}-int8", [(shape, "int8", 0.08, 3)], [(shape, "int8", 16 / 256, 127)])
        grid.op("L2_NORMALIZATION", what, [(shape, "float32")], [(shape, "float32")])
        grid.op("L2_NORMALIZATION", f"{what}-int8", [(shape, "int8", 0.08, 3)], [(shape, "int8", 1 / 128, 0)])
    grid.op(
        "SOFTMAX",
        "int16",
        [((3, 7), "int16", 10 / 32768, 0)],
        [((3, 7), "int16", 1 / 32768, 0)],
        beta=1.0,
        limits={"steps": 8},
    )
    for radius in (1, 2):
        grid.op(
            "LOCAL_RESPONSE_NORMALIZATION",
            f"{radius}",
            [((1, 2, 3, 7), "float32")],
            [((1, 2, 3, 7), "float32")],
            radius=radius,
            bias=1.0,
            alpha=0.5,
            beta=0.75,
            limits={"reference": False},
        )
