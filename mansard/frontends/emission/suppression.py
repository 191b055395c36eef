"""Non-maximum suppression: the boxes with the highest scores that do not overlap, a bounded number of them.

Each round takes the highest score that is left and drops the boxes that overlap its box too much, so a model
has two ops for each detection it can return.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.expressions import Num, index
from mansard.frontends.emission.tensor import Tensor
from mansard.ir.types import Linear

NEVER = -math.inf


@dataclass(frozen=True)
class Selection:
    """For each class (C) and round (R): the box, its score (-inf: none is left)."""

    indices: Tensor
    scores: Tensor


def select(g: Emitter, boxes: Tensor, scores: Tensor, rounds: int, overlap: float | Tensor) -> Selection:
    """Choose among boxes (N, 4) of corners, by the scores (C, N) of classes, of which -inf never is."""
    picked: list[Tensor] = []
    found: list[Tensor] = []
    classes, count = scores.shape
    for _ in range(rounds):
        best = g.reduce(scores, [1], "argmax")
        body = g.body((classes,))
        chosen = g.read(body, best, [Linear.dim(0)])
        found.append(g.finish(body, g.at(body, scores, [index(body.space, 0), chosen])))
        picked.append(best)
        body = g.body((classes, count))
        chosen = g.read(body, best, [Linear.dim(0)])
        here = index(body.space, 1)
        mine = [g.at(body, boxes, [chosen, index(body.space, 0).number(k)]) for k in range(4)]
        other = [g.read(body, boxes, [Linear.dim(1), Linear((), k)]) for k in range(4)]
        limit = g.read(body, overlap, []) if isinstance(overlap, Tensor) else overlap
        dropped = (_overlap(mine, other) > limit) | (here == chosen)
        score = g.read(body, scores, [Linear.dim(0), Linear.dim(1)])
        scores = g.finish(body, dropped.select(NEVER, score))
    return Selection(g.stack(picked, 1), g.stack(found, 1))


def _overlap(a: Sequence[Num], b: Sequence[Num]) -> Num:
    """Intersection over union of boxes by two opposite corners; 0 where a box has no area."""
    top, left, bottom, right = ([x.min(y), x.max(y)][k >= 2] for k, (x, y) in enumerate(_corners(a)))
    other_top, other_left, other_bottom, other_right = (
        [x.min(y), x.max(y)][k >= 2] for k, (x, y) in enumerate(_corners(b))
    )
    area = (bottom - top) * (right - left)
    other = (other_bottom - other_top) * (other_right - other_left)
    height = (bottom.min(other_bottom) - top.max(other_top)).max(0.0)
    width = (right.min(other_right) - left.max(other_left)).max(0.0)
    common = height * width
    return ((area <= 0.0) | (other <= 0.0)).select(0.0, common / (area + other - common))


def _corners(box: Sequence[Num]) -> list[tuple[Num, Num]]:
    y1, x1, y2, x2 = box
    return [(y1, y2), (x1, x2), (y1, y2), (x1, x2)]
