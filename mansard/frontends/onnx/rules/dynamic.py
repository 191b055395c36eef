"""Ops whose results have a size that depends on content, and others that are refused with a reason."""

from __future__ import annotations

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num, index
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import refuse, rule
from mansard.ir.types import Linear

_REFUSED = {
    "ImageDecoder": "compressed images are not read",
    "StringConcat": "strings are not supported",
    "StringSplit": "strings are not supported",
    "StringNormalizer": "strings are not supported",
    "RegexFullMatch": "strings are not supported",
}


for _name, _reason in _REFUSED.items():
    refuse(_name, _reason)


@rule("Compress")
def compress(g: GraphImporter, node: Node) -> Tensor:
    """The entries of an axis that a known condition keeps."""
    x = node.tensor(0)
    axis = axis_of(node.integer("axis"), x.rank) if node.has("axis") else None
    if axis is None:
        x, axis = g.reshape(x, (dims.product(x.shape),)), 0
    places = g.literal(np.flatnonzero(node.numbers(1)).astype(np.int64))
    shape: list[DimLike] = [*x.shape[:axis], places.shape[0], *x.shape[axis + 1 :]]
    body = g.body(shape)
    here = [index(body.space, i) for i in range(x.rank)]
    here[axis] = g.read(body, places, [Linear.dim(axis)])
    return g.finish(body, g.at(body, x, here))


@rule("Binarizer", domain="ai.onnx.ml")
def binarizer(g: GraphImporter, node: Node) -> Tensor:
    """1 above a threshold."""
    threshold = node.real("threshold", 0.0)
    return g.map(lambda e: (e > threshold).cast(e.dtype), node.tensor(0))


@rule("TfIdfVectorizer")
def tf_idf_vectorizer(g: GraphImporter, node: Node) -> Tensor:
    """Numbers of occurrences of n-grams of integers, weighted."""
    x = node.tensor(0)
    pool, starts = node.ints("pool_int64s"), node.ints("ngram_counts") or []
    if pool is None:
        raise node.fail("strings are not supported")
    columns = node.ints("ngram_indexes") or []
    shortest, longest = node.integer("min_gram_length"), node.integer("max_gram_length")
    grams: list[list[int]] = []
    for n, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        grams += [pool[i : i + n] for i in range(start, end, n)]
    rows = x if x.rank == 2 else g.unsqueeze(x, 0)
    weights = node.attribute("weights")
    mode = node.text("mode")
    results: list[Tensor] = [g.full((rows.shape[0],), 0.0, DType.F32) for _ in range(max(columns) + 1)]
    for i, gram in enumerate(grams):
        if not shortest <= len(gram) <= longest:
            continue
        count = _occurrences(g, node, rows, gram, node.integer("max_skip_count") if len(gram) > 1 else 0)
        weight = float(weights[i]) if weights is not None else 1.0
        if mode == "IDF":
            count = g.map(lambda c, w=weight: (c > 0.0).select(c.number(w), 0.0), count)
        elif mode == "TFIDF":
            count = g.map(lambda c, w=weight: c * w, count)
        results[columns[i]] = count
    table = g.stack(results, 1)
    return table if x.rank == 2 else g.reshape(table, (len(results),))


def _occurrences(g: GraphImporter, node: Node, x: Tensor, gram: list[int], skips: int) -> Tensor:
    """How often an n-gram occurs in each row, with up to so many elements between its own."""
    extent = x.shape[1]
    if not isinstance(extent, int):
        raise node.fail("rows of symbolic length")
    total: Tensor | None = None
    for skip in range(skips + 1):
        places = extent - (len(gram) - 1) * (skip + 1)
        if places <= 0:
            continue
        body = g.body((x.shape[0], places))
        hit: Num | None = None
        for i, word in enumerate(gram):
            same = g.read(body, x, [Linear.dim(0), Linear.dim(1, 1, i * (skip + 1))]) == word
            hit = same if hit is None else hit & same
        assert hit is not None
        count = g.finish(body, hit.cast(DType.F32), 1, "add")
        total = count if total is None else g.map(lambda a, b: a + b, total, count)
    return total if total is not None else g.full((x.shape[0],), 0.0, DType.F32)
