"""Detectors: the boxes with the highest scores that do not overlap, a bounded number of them.

Each round takes the highest score that is left and drops the boxes that overlap its box too much, so a model
has two ops for each detection it can return.
"""

from __future__ import annotations

from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num, index
from mansard.frontends.emission.suppression import NEVER, Selection, select
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.flexbuffer import numbers_of
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import real_tensor
from mansard.frontends.tflite.table import rule
from mansard.ir.types import Linear

F32, I32, I64 = DType.F32, DType.I32, DType.I64
MAX_ROUNDS = 512


@rule("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(g: GraphImporter, node: Node) -> list[Tensor]:
    """Indices of the boxes kept, filled up with 0, (V5) their scores, and their number."""
    boxes, scores = node.tensor(0), node.tensor(1)
    rounds = node.ints(2)[0]
    soft = node.op.endswith("V5")
    if soft and float(node.numbers(5).reshape(-1)[0]) != 0:
        raise node.fail("scores that overlaps lower (soft_nms_sigma)")
    if not 0 < rounds <= MAX_ROUNDS:
        raise node.fail(f"{rounds} boxes; up to {MAX_ROUNDS} are supported")
    threshold = g.reshape(node.tensor(4), ())
    allowed = g.map(lambda s, t: (s > t).select(s, NEVER), scores, threshold)
    chosen = select(g, boxes, g.unsqueeze(allowed, 0), rounds, g.reshape(node.tensor(3), ()))
    index_of, score = (g.take(t, 0, 0) for t in (chosen.indices, chosen.scores))
    kept = g.map(lambda s: s > NEVER, score)
    indices = g.map(lambda k, i: k.select(i.cast(I32), 0), kept, index_of)
    number = g.reduce(kept, [0], "add", function=lambda k: k.cast(I32))
    values = g.map(lambda k, s: k.select(s, 0.0), kept, score)
    return [indices, values, number] if soft else [indices, number]


@rule("custom.TFLite_Detection_PostProcess")
def detection(g: GraphImporter, node: Node) -> list[Tensor]:
    """Boxes decoded from anchors, then chosen by their best class or (regular) for each class."""
    options = numbers_of(node.operator.custom_options)
    rounds, each = int(options["max_detections"]), int(options.get("max_classes_per_detection", 1))
    regular = bool(options.get("use_regular_nms", 0))
    if not 0 < rounds <= MAX_ROUNDS or (each != 1 and not regular):
        raise node.fail(f"{rounds} detections of {each} classes; up to {MAX_ROUNDS} of one are supported")
    codes, predictions, anchors = (real_tensor(g, node, i) for i in range(3))
    if codes.shape[0] != 1:
        raise node.fail(f"a batch of {codes.shape[0]}")
    boxes = _decoded(g, g.take(codes, 0, 0), anchors, options)
    table = g.take(predictions, 0, 0)
    classes = int(options["num_classes"])
    background = int(str(table.shape[1])) - classes
    table = g.part(table, 1, background, classes)
    least, overlap = options["nms_score_threshold"], options["nms_iou_threshold"]
    if regular:
        by_class = g.map(lambda s: (s >= least).select(s, NEVER), g.transpose(table, (1, 0)))
        rounds_of_class = min(int(options.get("detections_per_class", 100)), rounds)
        chosen = select(g, boxes, by_class, rounds_of_class, overlap)
        return _merged(g, boxes, chosen, rounds)
    best, kinds = g.reduce(table, [1], "max"), g.reduce(table, [1], "argmax")
    allowed = g.map(lambda s: (s >= least).select(s, NEVER), best)
    chosen = select(g, boxes, g.unsqueeze(allowed, 0), rounds, overlap)
    places, scores = (g.take(t, 0, 0) for t in (chosen.indices, chosen.scores))
    body = g.body(places.shape)
    kind = g.at(body, kinds, [g.read(body, places, [Linear.dim(0)])])
    return _results(g, boxes, places, scores, g.finish(body, kind))


def _decoded(g: GraphImporter, codes: Tensor, anchors: Tensor, options: dict[str, float]) -> Tensor:
    """Corners (top, left, bottom, right) of boxes that are stored as centre and size by anchors."""
    body = g.body(codes.shape)
    scales = [options[f"{name}_scale"] for name in "yxhw"]

    def read(t: Tensor, k: int) -> Num:
        return g.read(body, t, [Linear.dim(0), Linear((), k)])

    corners: list[Num] = []
    for sign in (-1.0, 1.0):
        for k in (0, 1):
            centre = read(codes, k) * (1 / scales[k]) * read(anchors, k + 2) + read(anchors, k)
            half = (read(codes, k + 2) * (1 / scales[k + 2])).exp() * read(anchors, k + 2) * 0.5
            corners.append(centre + half * sign)
    here = index(body.space, 1)
    result = corners[3]
    for k in (2, 1, 0):
        result = (here == k).select(corners[k], result)
    return g.finish(body, result)


def _merged(g: GraphImporter, boxes: Tensor, chosen: Selection, rounds: int) -> list[Tensor]:
    """The highest scores of all classes."""
    classes, each = (int(str(d)) for d in chosen.scores.shape)
    count = classes * each
    flat = g.reshape(chosen.scores, (count,))
    kept = min(rounds, count)
    values, order = g.builder.sort(g.value(flat), 0, True, kept)
    places = g.reshape(chosen.indices, (count,))
    scores, position = g.tensor(values), g.tensor(order)
    body = g.body((kept,))
    box = g.finish(body, g.at(body, places, [g.read(body, position, [Linear.dim(0)])]))
    kinds = g.map(lambda p: p // each, position)
    if kept == rounds:
        return _results(g, boxes, box, scores, kinds)
    more = [0], [rounds - kept]
    return _results(g, boxes, g.pad(box, *more), g.pad(scores, *more, NEVER), g.pad(kinds, *more))


def _results(g: GraphImporter, boxes: Tensor, places: Tensor, scores: Tensor, kinds: Tensor) -> list[Tensor]:
    """Boxes, classes, scores (0 where none is left) and their number, with a batch of 1."""
    count = places.shape[0]
    body = g.body((1, count, 4))
    place = g.read(body, places, [Linear.dim(1)])
    some = g.read(body, scores, [Linear.dim(1)]) > NEVER
    corner = g.at(body, boxes, [place, index(body.space, 2)])
    chosen = g.finish(body, some.select(corner, 0.0))

    def kept(t: Tensor) -> Tensor:
        y = g.map(lambda s, e: (s > NEVER).select(e.cast(F32), 0.0), scores, t)
        return g.unsqueeze(y, 0)

    number = g.reduce(scores, [0], "add", keepdims=True, function=lambda s: (s > NEVER).cast(F32))
    return [chosen, kept(kinds), kept(scores), number]
