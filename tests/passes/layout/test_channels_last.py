"""Channels last: which values are permuted, across reshapes too, and that values stay."""

from __future__ import annotations

import numpy as np
from support.ir_graphs import F32, apply, arg, call, const, elementwise, plain, random

from mansard.analysis.operands import is_copy
from mansard.ir import Generic, Graph, GraphBuilder, Value
from mansard.ir.scalar import Gather, Index
from mansard.ir.types import Constant
from mansard.passes.fusion.fuse import fuse
from mansard.passes.layout.channels_last import channels_last
from mansard.passes.layout.row_order import order_rows


def constant(b: GraphBuilder, name: str, data: np.ndarray) -> Value:
    return b.constant(name, Constant.of(data, name), data.shape, F32)


def convolution(b: GraphBuilder, x: Value, out: int, name: str) -> Value:
    """1x1, (N, C, H, W) to (N, out, H, W)."""
    n, c, height, width = x.type.shape
    w = constant(b, name, random((out, c)))
    maps = [plain(0, 4, 2, 3), plain(1, 4)]
    body = call("mul", arg(0), arg(1))
    return b.generic([x, w], maps, (n, out, height, width, c), body, reduced=1, combiner="add")


def copies(graph: Graph) -> int:
    return sum(isinstance(op, Generic) and is_copy(op) for op in graph.ops)


def mean(b: GraphBuilder, x: Value) -> Value:
    """Over all but the first two dims."""
    rank = x.type.rank
    total = b.generic([x], [plain(*range(rank))], x.type.shape, arg(0), reduced=rank - 2, combiner="add")
    return b.generic([total], [plain(0, 1)], x.type.shape[:2], call("mul", arg(0), const(0.01)))


def norm(b: GraphBuilder, x: Value) -> Value:
    """Rows over all but the first two dims, by their mean and variance."""
    reads = [plain(*range(x.type.rank)), plain(0, 1)]
    centred = b.generic([x, mean(b, x)], reads, x.type.shape, call("sub", arg(0), arg(1)))
    deviation = elementwise(b, "rsqrt", mean(b, elementwise(b, "mul", centred, centred)))
    return b.generic([centred, deviation], reads, x.type.shape, call("mul", arg(0), arg(1)))


def group_norm(b: GraphBuilder, x: Value, *, flat: bool) -> Value:
    """In 4 groups, with the pixels of a group as three dims or as one."""
    n, c, height, width = x.type.shape
    groups = (n, 4, c // 4 * height * width) if flat else (n, 4, c // 4, height, width)
    return b.reshape(norm(b, b.reshape(x, groups)), x.type.shape)


def test_group_norms_keep_the_layout_however_they_are_stated():
    for flat in (False, True):
        b = GraphBuilder()
        x = convolution(b, b.input("x", (2, 3, 5, 6), F32), 16, "first")
        y = convolution(b, elementwise(b, "tanh", group_norm(b, x, flat=flat)), 8, "second")
        after = apply(b.build([y]), channels_last, order_rows)
        assert copies(after) == 1  # of the result
        assert [d.name.partition("_")[0] for d in fuse(after).dispatches] == [
            "contraction", "rows", "map", "contraction", "map"
        ]  # fmt: skip


def test_sums_run_along_the_memory():
    b = GraphBuilder()
    x = convolution(b, b.input("x", (2, 3, 5, 6), F32), 16, "w")
    after = apply(b.build([mean(b, b.reshape(x, (2, 4, 4, 5, 6)))]), channels_last)
    (total,) = (op for op in after.ops if isinstance(op, Generic) and op.combiner and op.rank == 2)
    assert total.extents[2:] == (5, 6, 4)


def test_tokens_of_an_image_are_not_copied():
    b = GraphBuilder()
    x = convolution(b, b.input("x", (2, 3, 5, 6), F32), 16, "w")
    tokens = elementwise(b, "tanh", b.reshape(x, (2, 16, 30)))
    y = b.generic([tokens], [plain(0, 2, 1)], (2, 30, 16), call("exp", arg(0)))
    assert copies(apply(b.build([y]), channels_last)) == 0


def test_a_reshape_that_crosses_dims_gets_the_old_order():
    b = GraphBuilder()
    x = convolution(b, b.input("x", (2, 3, 5, 6), F32), 16, "w")
    after = apply(b.build([elementwise(b, "tanh", b.reshape(x, (2, 12, 40)))]), channels_last)
    assert copies(after) == 1


def test_places_of_gathers_say_the_order_of_their_results():
    """A token before those of an image: the image's dims are exchanged where it is read."""
    b = GraphBuilder()
    x = convolution(b, b.input("x", (1, 3, 4, 4), F32), 8, "w")
    pixels = b.reshape(x, (1, 8, 16))
    place = call("max", call("sub", Index(1), const(1, Index(1).dtype)), const(0, Index(1).dtype))
    read = Gather(0, (Index(0), Index(2), place), F32)
    joined = b.generic([pixels], [None], (1, 17, 8), read)
    after = apply(b.build([elementwise(b, "tanh", joined)]), channels_last)
    assert copies(after) == 0 and after.outputs[0].type.shape == (1, 17, 8)


def test_largest_elements_of_merged_pixels_keep_their_numbers():
    b = GraphBuilder()
    x = convolution(b, b.input("x", (2, 3, 5, 6), F32), 16, "w")
    rows = b.reshape(elementwise(b, "tanh", x), (2, 4, 120))
    best = b.generic([rows], [plain(0, 1, 2)], (2, 4, 120), arg(0), reduced=1, combiner="argmax")
    assert apply(b.build([best]), channels_last).outputs[0].type.shape == (2, 4)


def test_constants_of_two_readers_stay_in_place():
    b = GraphBuilder()
    image = b.input("x", (1, 3, 4, 4), F32)
    scale = constant(b, "scale", np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
    x = convolution(b, image, 16, "w")
    maps = [plain(0, 1, 2, 3), plain(0, 1, None, None)]
    scaled = b.generic([x, scale], maps, x.type.shape, call("mul", arg(0), arg(1)))
    after = apply(b.build([group_norm(b, scaled, flat=True)]), channels_last)
    assert copies(after) == 1
