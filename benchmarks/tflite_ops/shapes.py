"""Cases of views, parts, joins, margins and images resized."""

from __future__ import annotations

import numpy as np

from benchmarks.tflite_ops.cases import Grid

Q = {"float32": (), "int32": (), "int8": (0.05, 3), "uint8": (0.05, 120), "bool": (), "int64": ()}
KINDS = ("float32", "int32", "int8")


def i32(*numbers: int) -> np.ndarray:  # type: ignore[type-arg]
    """A constant of indices."""
    return np.array(numbers, np.int32)


def enter(grid: Grid) -> None:
    """Add the cases."""
    for kind in KINDS:
        _views(grid, kind, Q[kind])
        _parts(grid, kind, Q[kind])
        _margins(grid, kind, Q[kind])
    _rescaled(grid)
    _resized(grid)
    _made(grid)


def _views(grid: Grid, kind: str, q: tuple) -> None:  # type: ignore[type-arg]
    x = ((2, 3, 4), kind, *q)
    for shape in ((6, 4), (24,), (1, 2, 12)):
        grid.op("RESHAPE", f"{shape}-{kind}", [x, i32(*shape)], [(shape, kind, *q)], new_shape=list(shape))
    grid.op("RESHAPE", f"hole-{kind}", [x, i32(-1, 3)], [((8, 3), kind, *q)], new_shape=[-1, 3])
    grid.op("SQUEEZE", f"all-{kind}", [((1, 3, 1, 4), kind, *q)], [((3, 4), kind, *q)], squeeze_dims=[])
    grid.op("SQUEEZE", f"one-{kind}", [((1, 3, 1, 4), kind, *q)], [((1, 3, 4), kind, *q)], squeeze_dims=[2])
    for axis in (0, 1, -1):
        shape = [3, 4]
        shape.insert(axis % 3, 1)
        grid.op("EXPAND_DIMS", f"{axis}-{kind}", [((3, 4), kind, *q), i32(axis)], [(tuple(shape), kind, *q)])
    for order in ((1, 0, 2), (2, 1, 0), (0, 2, 1)):
        out = tuple((2, 3, 4)[i] for i in order)
        grid.op("TRANSPOSE", f"{order}-{kind}", [x, i32(*order)], [(out, kind, *q)])
    for axis in (0, 1, -1):
        shape = [2, 3, 4]
        shape[axis] *= 3
        grid.op("CONCATENATION", f"{axis}-{kind}", [x, x, x], [(tuple(shape), kind, *q)], axis=axis)
    for axis in (0, 1, -1):
        shape = [3, 4]
        shape.insert(axis % 3, 2)
        grid.op(
            "PACK",
            f"{axis}-{kind}",
            [((3, 4), kind, *q)] * 2,
            [(tuple(shape), kind, *q)],
            axis=axis,
            values_count=2,
        )
        rest = [2, 3, 4]
        count = rest.pop(axis)
        grid.op("UNPACK", f"{axis}-{kind}", [x], [(tuple(rest), kind, *q)] * count, axis=axis, num=count)
    for repeats in ((2, 1, 1), (1, 2, 3)):
        out = tuple(a * b for a, b in zip((2, 3, 4), repeats, strict=True))
        grid.op("TILE", f"{repeats}-{kind}", [x, i32(*repeats)], [(out, kind, *q)])
    grid.op("BROADCAST_TO", kind, [((3, 1), kind, *q), i32(2, 3, 4)], [((2, 3, 4), kind, *q)])
    for axes in ((0,), (1,), (2,)):
        grid.op("REVERSE_V2", f"{axes}-{kind}", [x, i32(*axes)], [((2, 3, 4), kind, *q)])


def _parts(grid: Grid, kind: str, q: tuple) -> None:  # type: ignore[type-arg]
    x = ((4, 5, 6), kind, *q)
    for begin, size, out in (((1, 0, 2), (2, 5, 3), (2, 5, 3)), ((0, 2, 1), (-1, 2, -1), (4, 2, 5))):
        grid.op("SLICE", f"{begin}-{kind}", [x, i32(*begin), i32(*size)], [(out, kind, *q)])
    slices = {
        "plain": ((1, 0, 2), (3, 5, 6), (1, 2, 3), {}, (2, 3, 2)),
        "negative": ((-3, 4, 0), (-1, 0, 6), (1, -1, 1), {}, (2, 4, 6)),
        "masks": ((1, 2, 3), (3, 4, 5), (1, 1, 1), {"begin_mask": 1, "end_mask": 4}, (3, 2, 3)),
        "shrink": ((1, 2, 0), (2, 4, 6), (1, 1, 2), {"shrink_axis_mask": 1}, (2, 3)),
        "last": ((-1, 0, 0), (0, 5, 6), (1, 1, 1), {"shrink_axis_mask": 1}, (5, 6)),
    }  # fmt: skip
    for what, (begin, end, steps, masks, out) in slices.items():
        grid.op(
            "STRIDED_SLICE",
            f"{what}-{kind}",
            [x, i32(*begin), i32(*end), i32(*steps)],
            [(out, kind, *q)],
            **masks,
        )
    grid.op(
        "STRIDED_SLICE",
        f"ellipsis-{kind}",
        [x, i32(0, 1), i32(0, 4), i32(1, 1)],
        [((4, 5, 3), kind, *q)],
        ellipsis_mask=1,
    )
    grid.op(
        "STRIDED_SLICE",
        f"new-{kind}",
        [x, i32(0, 1), i32(0, 3), i32(1, 1)],
        [((1, 2, 5, 6), kind, *q)],
        new_axis_mask=1,
    )
    for axis, count in ((0, 2), (2, 3), (-1, 2)):
        shape = [4, 5, 6]
        shape[axis] //= count
        grid.op(
            "SPLIT",
            f"{axis}-{count}-{kind}",
            [np.array(axis, np.int32), x],
            [(tuple(shape), kind, *q)] * count,
            num_splits=count,
        )
    grid.op(
        "SPLIT_V",
        kind,
        [x, i32(1, 3, 2), np.array(2, np.int32)],
        [((4, 5, n), kind, *q) for n in (1, 3, 2)],
        num_splits=3,
    )
    grid.op(
        "SPLIT_V",
        f"hole-{kind}",
        [x, i32(2, -1), np.array(1, np.int32)],
        [((4, 5 - 2 if i else 2, 6), kind, *q) for i in range(2)],
        num_splits=2,
    )


def _margins(grid: Grid, kind: str, q: tuple) -> None:  # type: ignore[type-arg]
    x = ((1, 3, 4, 2), kind, *q)
    pads = np.array([[0, 0], [1, 2], [2, 0], [0, 0]], np.int32)
    grid.op("PAD", kind, [x, pads], [((1, 6, 6, 2), kind, *q)])
    value = np.array(5, kind)
    if not q:
        grid.op("PADV2", kind, [x, pads, value], [((1, 6, 6, 2), kind, *q)])
    near = np.array([[0, 0], [1, 2], [2, 1], [0, 0]], np.int32)
    for mode in (0, 1):
        grid.op("MIRROR_PAD", f"{mode}-{kind}", [x, near], [((1, 6, 7, 2), kind, *q)], mode=mode)
    grid.op("SPACE_TO_DEPTH", kind, [((1, 4, 6, 3), kind, *q)], [((1, 2, 3, 12), kind, *q)], block_size=2)
    grid.op("DEPTH_TO_SPACE", kind, [((1, 2, 3, 12), kind, *q)], [((1, 4, 6, 3), kind, *q)], block_size=2)
    crops = np.array([[0, 1], [2, 0]], np.int32)
    for what, margin, out in (("plain", 0, (4, 2, 3, 2)), ("padded", 1, (4, 3, 3, 2))):
        height = 4 if not margin else 5
        pads = np.array([[0, margin], [0, 0]], np.int32)
        grid.op(
            "SPACE_TO_BATCH_ND",
            f"{what}-{kind}",
            [((1, height, 6, 2), kind, *q), i32(2, 2), pads],
            [(out, kind, *q)],
        )
    grid.op(
        "BATCH_TO_SPACE_ND", kind, [((4, 2, 3, 2), kind, *q), i32(2, 2), crops], [((1, 3, 4, 2), kind, *q)]
    )


def _rescaled(grid: Grid) -> None:
    parts = [((2, 3), "uint8", 0.05, 120), ((2, 3), "uint8", 0.03, 100)]
    grid.op("CONCATENATION", "rescaled-uint8", parts, [((4, 3), "uint8", 0.06, 128)], axis=0)
    grid.op(
        "CONCATENATION",
        "activated",
        [((2, 3), "float32")] * 2,
        [((4, 3), "float32")],
        axis=0,
        fused_activation_function=0,
    )


def _resized(grid: Grid) -> None:
    for op in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        for size in ((6, 8), (5, 9), (2, 2), (1, 1), (9, 12)):
            for corners, half in ((False, False), (True, False), (False, True)):
                for kind in ("float32", "int8", "uint8"):
                    q = Q[kind]
                    grid.op(
                        op,
                        f"{size}-{corners}-{half}-{kind}",
                        [((1, 3, 4, 2), kind, *q), i32(*size)],
                        [((1, *size, 2), kind, *q)],
                        align_corners=corners,
                        half_pixel_centers=half,
                    )


def _made(grid: Grid) -> None:
    grid.op("FILL", "float", [i32(2, 3), ((), "float32")], [((2, 3), "float32")])
    grid.op("FILL", "int", [i32(2, 3), ((), "int32")], [((2, 3), "int32")])
    grid.op("SHAPE", "int32", [((2, 3), "float32")], [((2,), "int32")], out_type=2)
    grid.op("RANK", "float", [((2, 3), "float32")], [((), "int32")])
    grid.op("MATRIX_DIAG", "float", [((2, 3), "float32")], [((2, 3, 3), "float32")])
    grid.op(
        "MATRIX_SET_DIAG", "float", [((2, 3, 4), "float32"), ((2, 3), "float32")], [((2, 3, 4), "float32")]
    )
