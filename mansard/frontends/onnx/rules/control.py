"""Control flow: branches, and loops of a known length, which are unrolled."""

from __future__ import annotations

from typing import Any

import numpy as np

from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.entries import Absent, Entry
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import rule
from mansard.frontends.onnx.weights import dtype_of
from mansard.ir.shapes import same_shape

MAX_ITERATIONS = 4096


@rule("If")
def if_rule(g: GraphImporter, node: Node) -> list[Entry | None]:
    """One branch, or both and a choice between their results."""
    condition = node.tensor(0)
    then, other = node.attribute("then_branch"), node.attribute("else_branch")
    if condition.content is not None:
        return list(g.subgraph(then if bool(condition.content.reshape(-1)[0]) else other, []))
    first, second = g.subgraph(then, []), g.subgraph(other, [])
    return [_chosen(g, node, condition, a, b) for a, b in zip(first, second, strict=True)]


def _chosen(g: GraphImporter, node: Node, condition: Tensor, a: Entry, b: Entry) -> Entry:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dtype is not b.dtype:
        raise node.fail(
            "branches whose results are no tensors of one type, by a condition computed at run time"
        )
    if not same_shape(a.shape, b.shape):
        raise node.fail(f"branches whose results have shapes {list(a.shape)} and {list(b.shape)}")
    flag = g.reshape(condition, ())
    return g.map(lambda c, x, y: c.select(x, y), flag, a, b)


@rule("Loop")
def loop(g: GraphImporter, node: Node) -> list[Entry | None]:
    """A body repeated; where its condition is computed at run time, results are kept once it was false."""
    body = node.attribute("body")
    count = node.optional(0)
    limit = None if count is None else int(node.numbers(0).reshape(-1)[0])
    carried: list[Entry] = [entry if entry is not None else Absent() for entry in node.inputs[2:]]
    scanned: list[list[Tensor]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    running = node.optional(1) or g.literal(np.array(True))
    step = 0
    while limit is None or step < limit:
        if running.content is not None and not bool(running.content.reshape(-1)[0]):
            break
        if step >= MAX_ITERATIONS or (limit is None and running.content is None):
            raise node.fail("a number of iterations that is not known when the model is compiled")
        results = g.subgraph(body, [g.literal(np.array(step, np.int64)), running, *carried])
        carried = _carried(g, node, running, carried, results[1 : 1 + len(carried)])
        if scanned and running.content is None:
            raise node.fail("results of every iteration, whose number is computed at run time")
        for rows, entry in zip(scanned, results[1 + len(carried) :], strict=True):
            rows.append(_tensor(node, entry))
        running = _and(g, running, _tensor(node, results[0]))
        step += 1
    return [*carried, *(_stacked(g, node, body, i, rows) for i, rows in enumerate(scanned, 1 + len(carried)))]


def _carried(
    g: GraphImporter, node: Node, running: Tensor, old: list[Entry], new: list[Entry]
) -> list[Entry]:
    if running.content is not None:
        return list(new)
    return [_chosen(g, node, running, b, a) for a, b in zip(old, new, strict=True)]


def _and(g: GraphImporter, a: Tensor, b: Tensor) -> Tensor:
    """Whether the loop goes on: both conditions, of which known ones fold."""
    if a.content is not None:
        return b if bool(a.content.reshape(-1)[0]) else a
    if b.content is not None and bool(b.content.reshape(-1)[0]):
        return a
    return g.map(lambda x, y: x & y, g.reshape(a, ()), g.reshape(b, ()))


def _tensor(node: Node, entry: Entry) -> Tensor:
    if not isinstance(entry, Tensor):
        raise node.fail("a body whose result is no tensor")
    return entry


def _stacked(
    g: GraphImporter, node: Node, body: Any, output: int, rows: list[Tensor], axis: int = 0
) -> Tensor:
    if rows:
        if all(r.content is not None and not r.symbolic for r in rows):
            return g.literal(np.stack([np.asarray(r.content) for r in rows], axis), rows[0].dtype)
        return g.stack(rows, axis)
    declared = body.output[output].type.tensor_type
    shape = [d.dim_value for d in declared.shape.dim]
    return g.literal(np.zeros((0, *shape), dtype_of(declared.elem_type, node.location).numpy))


@rule("Scan")
def scan(g: GraphImporter, node: Node) -> list[Entry | None]:
    """A body over the entries of an axis."""
    body, count = node.attribute("body"), node.integer("num_scan_inputs")
    entries = node.inputs
    if node.version < 9:
        return _batched_scan(g, node)
    states: list[Entry] = [e for e in entries[: len(entries) - count] if e is not None]
    tensors = [node.tensor(i) for i in range(len(entries) - count, len(entries))]
    axes = node.ints("scan_input_axes") or [0] * count
    backwards = node.ints("scan_input_directions") or [0] * count
    return _scanned(g, node, body, states, tensors, axes, backwards)


def _scanned(
    g: GraphImporter,
    node: Node,
    body: Any,
    states: list[Entry],
    tensors: list[Tensor],
    axes: list[int],
    backwards: list[int],
) -> list[Entry | None]:
    axes = [axis_of(a, t.rank) for a, t in zip(axes, tensors, strict=True)]
    length = tensors[0].shape[axes[0]]
    if not isinstance(length, int) or length > MAX_ITERATIONS:
        raise node.fail(f"a scan of {length} steps")
    outputs = len(body.output) - len(states)
    rows: list[list[Tensor]] = [[] for _ in range(outputs)]
    for step in range(length):
        parts = [
            g.take(t, a, length - 1 - step if back else step)
            for t, a, back in zip(tensors, axes, backwards, strict=True)
        ]
        results = g.subgraph(body, [*states, *parts])
        states = list(results[: len(states)])
        for row, entry in zip(rows, results[len(states) :], strict=True):
            row.append(_tensor(node, entry))
    out_axes = node.ints("scan_output_axes") or [0] * outputs
    reversed_out = node.ints("scan_output_directions") or [0] * outputs
    stacked = [
        _stacked(
            g, node, body, len(states) + i, row[::-1] if back else row, a if a >= 0 else a + row[0].rank + 1
        )
        for i, (row, a, back) in enumerate(zip(rows, out_axes, reversed_out, strict=True))
    ]
    return [*states, *stacked]


def _batched_scan(g: GraphImporter, node: Node) -> list[Entry | None]:
    """Version 8: a batch of scans, of equal length."""
    body, count = node.attribute("body"), node.integer("num_scan_inputs")
    entries = node.inputs[1:]
    if node.optional(0) is not None:
        raise node.fail("scans of different lengths")
    first = entries[0]
    batch = first.shape[0] if isinstance(first, Tensor) else 0
    if not isinstance(batch, int):
        raise node.fail("scans of a symbolic batch")
    backwards = node.ints("directions") or [0] * count
    columns: list[list[Tensor]] = []
    for b in range(batch):
        states = [g.take(_tensor(node, e), 0, b) for e in entries[:-count] if e is not None]
        tensors = [g.take(_tensor(node, e), 0, b) for e in entries[-count:] if e is not None]
        results = _scanned(g, node, body, list(states), tensors, [0] * count, backwards)
        columns.append([_tensor(node, r) for r in results if r is not None])
    return [g.stack(list(column), 0) for column in zip(*columns, strict=True)]
