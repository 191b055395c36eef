"""Cases of several operators: control flow, variables, spectra, recurrent networks and detectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers

from benchmarks.tflite_ops.cases import Array, Grid
from benchmarks.tflite_ops.writer import Writer

Build = Callable[[np.random.Generator], tuple[bytes, list[Array]]]


def enter(grid: Grid) -> None:
    """Add the cases."""
    for taken in (True, False):
        grid.enter("IF", f"{taken}", _branch(taken))
    for count in (0, 1, 5):
        grid.enter("WHILE", f"{count}", _loop(count))
    grid.enter("STABLEHLO_COMPOSITE", "norm", _composite)
    for shape in ((1, 8), (4, 8), (1, 64)):
        for part in ("COMPLEX_ABS", "REAL", "IMAG"):
            what = f"{shape[0]}x{shape[1]}"
            grid.enter("RFFT2D", f"{what}-{part.lower()}", _spectrum(shape, part), atol=1e-4)
    for what, options in {
        "plain": {}, "peepholes": {"peepholes": True}, "coupled": {"coupled": True},
        "clipped": {"clip": 0.3}, "projected": {"projected": True}, "major": {"time_major": True},
        "normed": {"normed": True},
    }.items():  # fmt: skip
        grid.enter("UNIDIRECTIONAL_SEQUENCE_LSTM", what, _lstm(**options))  # type: ignore[arg-type]
    for merged in (True, False):
        grid.enter("BIDIRECTIONAL_SEQUENCE_LSTM", f"{merged}", _both_ways(merged))
    for major in (True, False):
        grid.enter("UNIDIRECTIONAL_SEQUENCE_RNN", f"{major}", _rnn(major))
    grid.enter("RNN", "step", _rnn_step)
    grid.enter("BIDIRECTIONAL_SEQUENCE_RNN", "merged", _rnn_both_ways)
    grid.enter("LSTM", "full", _lstm_step)
    grid.enter("LSTM", "basic", _lstm_basic)
    grid.enter("BROADCAST_ARGS", "rows", _broadcast)
    grid.enter("RANGE", "float", _range)
    for block in (1, 2):
        grid.enter("DENSIFY", f"{block}", _densified(block))
    for rank in (1, 2):
        grid.enter("SVDF", f"{rank}", _svdf(rank))
    for op in ("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"):
        for count in (3, 12):
            grid.enter(op, f"{count}", _suppression(op, count))
    for regular in (False, True):
        grid.enter("TFLite_Detection_PostProcess", f"{regular}", _detection(regular))


def _floats(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.standard_normal(shape) * 0.5).astype(np.float32)


def _branch(taken: bool) -> Build:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        flag, x, y = w.input((), "bool"), w.input((3,)), w.tensor((3,))
        w.op("IF", [flag, x], [y], then_subgraph_index=1, else_subgraph_index=2)
        w.outputs(y)
        for op in ("EXP", "NEG"):
            w.begin()
            a, b = w.input((3,)), w.tensor((3,))
            w.op(op, [a], [b])
            w.outputs(b)
        return w.bytes(), [np.array(taken), _floats(rng, 3)]

    return build


def _loop(count: int) -> Build:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        x = w.input((3,))
        start, step, y = w.constant(np.array(0, np.int32)), w.tensor((), "int32"), w.tensor((3,))
        w.op("WHILE", [start, x], [step, y], cond_subgraph_index=1, body_subgraph_index=2)
        w.outputs(y)
        w.begin()
        i, _ = w.input((), "int32"), w.input((3,))
        less = w.tensor((), "bool")
        w.op("LESS", [i, w.constant(np.array(count, np.int32))], [less])
        w.outputs(less)
        w.begin()
        i, a = w.input((), "int32"), w.input((3,))
        following, b = w.tensor((), "int32"), w.tensor((3,))
        w.op("ADD", [i, w.constant(np.array(1, np.int32))], [following])
        w.op("TANH", [a], [b])
        w.outputs(following, b)
        return w.bytes(), [_floats(rng, 3)]

    return build


def _composite(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
    w = Writer()
    x, y = w.input((3,)), w.tensor((3,))
    attributes = list(options_of({}))
    w.op(
        "STABLEHLO_COMPOSITE",
        [x],
        [y],
        name="test.square",
        decomposition_subgraph_index=1,
        composite_attributes=attributes,
    )
    w.outputs(y)
    w.begin()
    a, b = w.input((3,)), w.tensor((3,))
    w.op("SQUARE", [a], [b])
    w.outputs(b)
    return w.bytes(), [_floats(rng, 3)]


def _spectrum(shape: tuple[int, int], part: str) -> Build:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        bins = (3, shape[0], shape[1] // 2 + 1)
        x, z, y = w.input((3, *shape)), w.tensor(bins, "complex64"), w.tensor(bins)
        w.op("RFFT2D", [x, w.constant(np.array(shape, np.int32))], [z])
        w.op(part, [z], [y])
        w.outputs(y)
        return w.bytes(), [_floats(rng, 3, *shape)]

    return build


# Recurrent networks ---------------------------------------------------------------------------
BATCH, STEPS, WIDTH, HIDDEN = 2, 4, 5, 6


def _lstm(
    *, peepholes: bool = False, coupled: bool = False, clip: float = 0.0, projected: bool = False,
    time_major: bool = False, normed: bool = False,
) -> Build:  # fmt: skip
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        shape = (STEPS, BATCH, WIDTH) if time_major else (BATCH, STEPS, WIDTH)
        out = 3 if projected else HIDDEN
        operands = [w.input(shape)]
        gates = [not coupled, True, True, True]
        operands += [w.constant(_floats(rng, HIDDEN, WIDTH)) if g else -1 for g in gates]
        operands += [w.constant(_floats(rng, HIDDEN, out)) if g else -1 for g in gates]
        looks = [peepholes and not coupled, peepholes, peepholes]
        operands += [w.constant(_floats(rng, HIDDEN)) if p else -1 for p in looks]
        operands += [w.constant(_floats(rng, HIDDEN)) if g else -1 for g in gates]
        operands += [w.constant(_floats(rng, 3, HIDDEN)) if projected else -1, -1]
        operands += [w.tensor((BATCH, n), variable=True) for n in (out, HIDDEN)]
        if normed:
            operands += [w.constant(_floats(rng, HIDDEN) + 1) for _ in range(4)]
        y = w.tensor((*shape[:2], out))
        w.op("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, [y], fused_activation_function=4, cell_clip=clip,
             proj_clip=0.0, time_major=time_major)  # fmt: skip
        w.outputs(y)
        return w.bytes(), [_floats(rng, *shape)]

    return build


def _both_ways(merged: bool) -> Build:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        lead = (STEPS, BATCH) if merged else (BATCH, STEPS)  # LiteRT joins sequences of steps only
        operands = [w.input((*lead, WIDTH))]
        for _ in range(2):
            operands += [w.constant(_floats(rng, HIDDEN, WIDTH)) for _ in range(4)]
            operands += [w.constant(_floats(rng, HIDDEN, HIDDEN)) for _ in range(4)]
            operands += [-1] * 3 + [w.constant(_floats(rng, HIDDEN)) for _ in range(4)] + [-1] * 2
        operands += [w.tensor((BATCH, HIDDEN), variable=True) for _ in range(4)] + [-1] * 9
        widths = [2 * HIDDEN] if merged else [HIDDEN] * 2
        results = [w.tensor((*lead, n)) for n in widths]
        options = {"merge_outputs": merged, "time_major": merged, "fused_activation_function": 4}
        w.op("BIDIRECTIONAL_SEQUENCE_LSTM", operands, results, **options)
        w.outputs(*results)
        return w.bytes(), [_floats(rng, *lead, WIDTH)]

    return build


def _rnn(major: bool) -> Build:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        shape = (STEPS, BATCH, WIDTH) if major else (BATCH, STEPS, WIDTH)
        operands = [
            w.input(shape),
            w.constant(_floats(rng, HIDDEN, WIDTH)),
            w.constant(_floats(rng, HIDDEN, HIDDEN)),
        ]
        operands += [w.constant(_floats(rng, HIDDEN)), w.tensor((BATCH, HIDDEN), variable=True)]
        y = w.tensor((*shape[:2], HIDDEN))
        w.op("UNIDIRECTIONAL_SEQUENCE_RNN", operands, [y], time_major=major, fused_activation_function=1)
        w.outputs(y)
        return w.bytes(), [_floats(rng, *shape)]

    return build


def _rnn_step(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
    w = Writer()
    operands = [w.input((BATCH, WIDTH)), w.constant(_floats(rng, HIDDEN, WIDTH))]
    operands += [w.constant(_floats(rng, HIDDEN, HIDDEN)), w.constant(_floats(rng, HIDDEN))]
    operands += [w.tensor((BATCH, HIDDEN), variable=True)]
    y = w.tensor((BATCH, HIDDEN))
    w.op("RNN", operands, [y], fused_activation_function=4)
    w.outputs(y)
    return w.bytes(), [_floats(rng, BATCH, WIDTH)]


def _rnn_both_ways(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
    w = Writer()
    operands = [w.input((BATCH, STEPS, WIDTH))]
    for _ in range(2):
        operands += [w.constant(_floats(rng, HIDDEN, WIDTH)), w.constant(_floats(rng, HIDDEN, HIDDEN))]
        operands += [w.constant(_floats(rng, HIDDEN)), w.tensor((BATCH, HIDDEN), variable=True)]
    y = w.tensor((BATCH, STEPS, 2 * HIDDEN))
    options = {"time_major": False, "merge_outputs": True, "fused_activation_function": 4}
    w.op("BIDIRECTIONAL_SEQUENCE_RNN", [*operands, -1, -1, -1], [y], **options)
    w.outputs(y)
    return w.bytes(), [_floats(rng, BATCH, STEPS, WIDTH)]


def _lstm_step(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
    w = Writer()
    operands = [w.input((BATCH, WIDTH))]
    operands += [w.constant(_floats(rng, HIDDEN, WIDTH)) for _ in range(4)]
    operands += [w.constant(_floats(rng, HIDDEN, HIDDEN)) for _ in range(4)]
    operands += [-1] * 3 + [w.constant(_floats(rng, HIDDEN)) for _ in range(4)] + [-1] * 2
    operands += [w.tensor((BATCH, HIDDEN), variable=True) for _ in range(2)]
    y = w.tensor((BATCH, HIDDEN))
    w.op("LSTM", operands, [y], fused_activation_function=4, kernel_type=0)
    w.outputs(y)
    return w.bytes(), [_floats(rng, BATCH, WIDTH)]


def _lstm_basic(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
    w = Writer()
    x, h = w.input((BATCH, WIDTH)), w.input((BATCH, HIDDEN))
    weight, bias = w.constant(_floats(rng, 4 * HIDDEN, WIDTH + HIDDEN)), w.constant(_floats(rng, 4 * HIDDEN))
    c = w.input((BATCH, HIDDEN))
    shapes = ((BATCH, HIDDEN), (BATCH, HIDDEN), (BATCH, WIDTH + HIDDEN), (BATCH, 4 * HIDDEN))
    results = [w.tensor(s) for s in shapes]
    w.op("LSTM", [x, h, weight, bias, c], results, fused_activation_function=4, kernel_type=1)
    w.outputs(*results[:2])
    return w.bytes(), [_floats(rng, BATCH, n) for n in (WIDTH, HIDDEN, HIDDEN)]


def _broadcast(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
    w = Writer()
    x, like = w.input((3, 1)), w.input((2, 1, 4))
    shapes = [w.tensor((n,), "int32") for n in (2, 3)]
    common, y = w.tensor((3,), "int32"), w.tensor((2, 3, 4))
    for tensor, to in zip((x, like), shapes, strict=True):
        w.op("SHAPE", [tensor], [to], out_type=2)
    w.op("BROADCAST_ARGS", shapes, [common])
    w.op("BROADCAST_TO", [x, common], [y])
    w.outputs(y)
    return w.bytes(), [_floats(rng, 3, 1), _floats(rng, 2, 1, 4)]


def _range(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
    w = Writer()
    x, steps, y = w.input((5,)), w.tensor((5,)), w.tensor((5,))
    limits = [w.constant(np.array(v, np.float32)) for v in (1.0, 3.4, 0.5)]
    w.op("RANGE", limits, [steps])
    w.op("ADD", [x, steps], [y])
    w.outputs(y)
    return w.bytes(), [_floats(rng, 5)]


def _densified(block: int) -> Build:
    """Rows of a matrix, of which a few (blocks of) elements are stored."""

    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        segments, places = np.array([0, 2, 2, 3, 5], np.int32), np.array([0, 2, 1, 0, 1], np.int32)
        kept = _floats(rng, len(places) * block)
        sparse, dense = w.constant(kept), w.tensor((4, 3 * block))
        w.graph.tensors[sparse].shape = [4, 3 * block]
        w.graph.tensors[sparse].sparsity = sparsity(segments, places, block)
        x, y = w.input((4, 3 * block)), w.tensor((4, 3 * block))
        w.op("DENSIFY", [sparse], [dense])
        w.op("ADD", [x, dense], [y])
        w.outputs(y)
        return w.bytes(), [_floats(rng, 4, 3 * block)]

    return build


def sparsity(segments: Array, places: Array, block: int) -> Any:
    """Compressed rows of a matrix of four rows, whose elements are blocks along the row."""
    levels = [schema.DimensionMetadataT() for _ in range(2 if block == 1 else 3)]
    levels[0].denseSize = len(segments) - 1
    levels[1].format = schema.DimensionType.SPARSE_CSR
    for field, numbers in (("arraySegments", segments), ("arrayIndices", places)):
        vector = schema.Int32VectorT()
        vector.values = list(numbers)
        setattr(levels[1], field, vector)
        setattr(levels[1], f"{field}Type", schema.SparseIndexVector.Int32Vector)
    result = schema.SparsityParametersT()
    result.traversalOrder = list(range(len(levels)))
    if block > 1:
        levels[2].denseSize = block
        result.blockMap = [1]
    result.dimMetadata = levels
    return result


def _svdf(rank: int) -> Build:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        memory, filters = 3, HIDDEN * rank
        operands = [w.input((BATCH, WIDTH)), w.constant(_floats(rng, filters, WIDTH))]
        operands += [w.constant(_floats(rng, filters, memory)), w.constant(_floats(rng, HIDDEN))]
        operands += [w.tensor((BATCH, filters * memory), variable=True)]
        y = w.tensor((BATCH, HIDDEN))
        w.op("SVDF", operands, [y], rank=rank, fused_activation_function=1)
        w.outputs(y)
        return w.bytes(), [_floats(rng, BATCH, WIDTH)]

    return build


# Detectors ------------------------------------------------------------------------------------
def _boxes(rng: np.random.Generator, count: int) -> Array:
    corner, size = rng.uniform(0, 0.6, (count, 2)), rng.uniform(0.1, 0.4, (count, 2))
    return np.concatenate([corner, corner + size], 1).astype(np.float32)


def _suppression(op: str, count: int) -> Build:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        operands = [w.input((20, 4)), w.input((20,)), w.constant(np.array(count, np.int32))]
        operands += [w.constant(np.array(v, np.float32)) for v in (0.4, 0.2)]
        results = [w.tensor((count,), "int32")]
        if op.endswith("V5"):
            operands.append(w.constant(np.array(0.0, np.float32)))
            results.append(w.tensor((count,)))
        results.append(w.tensor((), "int32"))
        w.op(op, operands, results)
        w.outputs(*results)
        return w.bytes(), [_boxes(rng, 20), rng.uniform(0, 1, 20).astype(np.float32)]

    return build


def options_of(values: dict[str, Any]) -> bytes:
    """A map of a custom operator's options."""
    return bytes(flexbuffers.Dumps(values))


def _detection(regular: bool) -> Build:
    def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
        w = Writer()
        count, classes, kept = 30, 3, 5
        anchors = np.concatenate([rng.uniform(0.2, 0.8, (count, 2)), rng.uniform(0.1, 0.3, (count, 2))], 1)
        operands = [
            w.input((1, count, 4)),
            w.input((1, count, classes + 1)),
            w.constant(anchors.astype(np.float32)),
        ]
        shapes: Sequence[tuple[int, ...]] = ((1, kept, 4), (1, kept), (1, kept), (1,))
        results = [w.tensor(s) for s in shapes]
        custom = options_of({
            "max_detections": kept, "max_classes_per_detection": 1, "detections_per_class": kept,
            "use_regular_nms": regular, "nms_score_threshold": 0.1, "nms_iou_threshold": 0.5,
            "num_classes": classes, "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
        })  # fmt: skip
        w.op("TFLite_Detection_PostProcess", operands, results, custom=custom)
        w.outputs(*results)
        scores = rng.uniform(0, 1, (1, count, classes + 1)).astype(np.float32)
        return w.bytes(), [_floats(rng, 1, count, 4), scores]

    return build
