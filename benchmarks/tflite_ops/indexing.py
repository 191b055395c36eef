"""Cases of reading and writing at computed places."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.tflite_ops.cases import Grid, drawn

Q: dict[str, tuple[float, int] | tuple[()]] = {"float32": (), "int32": (), "int8": (0.05, 3)}


def below(limit: int) -> Any:
    """Draws of indices; of other types as usual."""

    def draw(rng: np.random.Generator, spec: Any) -> Any:
        if spec[1] in ("int32", "int64") and len(spec) == 3 and spec[2] is None:
            return rng.integers(0, limit, spec[0]).astype(spec[1])
        return drawn(rng, spec)

    return draw


def places(*shape: int, dtype: str = "int32") -> tuple[Any, ...]:
    """An input of indices."""
    return (shape, dtype, None)


def enter(grid: Grid) -> None:
    """Add the cases."""
    for kind, q in Q.items():
        _reads(grid, kind, q)
    for dtype in ("int32", "int64"):
        index = places(3, dtype=dtype)
        for axis in (-1, 0):
            shape = (3, 5) if axis == -1 else (5, 3)
            on, off = np.array(2.0, np.float32), np.array(-1.0, np.float32)
            grid.op(
                "ONE_HOT",
                f"{axis}-{dtype}",
                [index, np.array(5, np.int32), on, off],
                [(shape, "float32")],
                axis=axis,
                values=below(5),
            )
    for kind in ("float32", "int32"):
        spec = ((4, 2), kind)
        for rows in (3, 6):
            grid.op(
                "SCATTER_ND",
                f"{kind}-{rows}",
                [places(4, 1), spec, np.array([rows, 2], np.int32)],
                [((rows, 2), kind)],
                values=below(rows),
            )
        for what in ("SUM", "PROD", "MAX", "MIN"):
            grid.op(
                f"UNSORTED_SEGMENT_{what}",
                kind,
                [spec, places(4), np.array(3, np.int32)],
                [((3, 2), kind)],
                values=below(3),
            )
        ids = np.array([0, 0, 1, 2], np.int32)
        grid.op("SEGMENT_SUM", kind, [spec, ids], [((3, 2), kind)])
        update = [((4, 5), kind), ((2, 3), kind), places(2)]
        grid.op("DYNAMIC_UPDATE_SLICE", kind, update, [((4, 5), kind)], values=below(4))
    lengths = np.array([2, 4], np.int32)
    grid.op(
        "REVERSE_SEQUENCE",
        "float",
        [((2, 4, 3), "float32"), lengths],
        [((2, 4, 3), "float32")],
        seq_dim=1,
        batch_dim=0,
    )
    grid.op("BUCKETIZE", "float", [((9,), "float32")], [((9,), "int32")], boundaries=[-1.0, 0.0, 1.5])
    dense = [
        np.array([1, 3], np.int32).reshape(2, 1),
        np.array([5], np.int32),
        ((2,), "float32"),
        np.array(7.0, np.float32),
    ]
    grid.op("SPARSE_TO_DENSE", "float", dense, [((5,), "float32")])


def _reads(grid: Grid, kind: str, q: tuple[Any, ...]) -> None:
    x = ((4, 5, 6), kind, *q)
    for axis in (0, 1, -1):
        for shape in ((3,), (2, 2), ()):
            out = [4, 5, 6]
            at = axis % 3
            out[at : at + 1] = shape
            grid.op(
                "GATHER",
                f"{axis}-{shape}-{kind}",
                [x, places(*shape)],
                [(tuple(out), kind, *q)],
                axis=axis,
                values=below(4),
            )
    grid.op(
        "GATHER",
        f"batch-{kind}",
        [x, places(4, 2)],
        [((4, 2, 6), kind, *q)],
        axis=1,
        batch_dims=1,
        values=below(5),
    )
    for width in (1, 2, 3):
        grid.op(
            "GATHER_ND",
            f"{width}-{kind}",
            [x, places(7, width)],
            [((7, *(4, 5, 6)[width:]), kind, *q)],
            values=below(4),
        )
    if not q:
        grid.op("EMBEDDING_LOOKUP", kind, [places(3), ((4, 5), kind)], [((3, 5), kind)], values=below(4))
