"""Guards of a softmax that put a number for NaN, as a condition on the sums of its rows.

Before (`torch.onnx` writes ``Where(IsNaN(p), 0, p)`` behind the softmax of a masked attention)::

    %e: 8x16xf32 = generic (d0:8, d1:16) {exp(%x[d0, d1] - %top[d0])}
    %t: 8xf32 = generic (d0:8 | d1:16) add {%e[d0, d1]}
    %p: 8x16xf32 = generic (d0:8, d1:16) {%e[d0, d1] / %t[d0]}
    %n: 8x16xbool = generic (d0:8, d1:16) {isnan(%p[d0, d1])}
    %y: 8x16xf32 = generic (d0:8, d1:16) {select(%n[d0, d1], 0.0, %p[d0, d1])}

After, where ``top`` is the maximum of the row::

    %y: 8x16xf32 = generic (d0:8, d1:16) {select(%t[d0] > 0.0, %e[d0, d1] / %t[d0], 0.0)}

Exponentials of differences to the largest are at most 1 or NaN, so a quotient is NaN exactly where the sum is
NaN or 0: for a whole row. `mansard.analysis.attention` knows this form.
"""

from __future__ import annotations

from collections.abc import Mapping

from mansard.analysis.attention import floored
from mansard.analysis.operands import inlined, with_body
from mansard.dtypes import DType
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Const, Scalar
from mansard.ir.types import Value
from mansard.passes.canonical.simplify import simplify_op


def guard_rows(graph: Graph) -> Graph:
    """State such guards by rows; the same graph when there are none."""
    producers = graph.producers()
    ops = [_guarded_by_row(op, producers) if isinstance(op, Generic) else op for op in graph.ops]
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def _guarded_by_row(op: Generic, producers: Mapping[Value, Op]) -> Generic:
    if op.combiner is not None or not (isinstance(op.body, Apply) and op.body.op == "select"):
        return op
    whole = op
    for wanted in (_tested, _quotient):  # the mask, where it is apart, and what it tests
        sources = {
            v: source
            for v in whole.inputs
            if isinstance(source := producers.get(v), Generic) and source.combiner is None
            if wanted(source.body) is not None
        }
        whole = inlined(whole, sources)
    simple = simplify_op(whole)
    assert isinstance(simple, Generic)
    body = simple.body
    if not (isinstance(body, Apply) and body.op == "select"):
        return op
    condition, other, quotient = body.args
    factors = _quotient(quotient)
    if factors is None or _tested(condition) != quotient or not isinstance(other, Const):
        return op
    above, below = factors
    if not _is_softmax(simple, above, below, producers):
        return op
    positive = Apply("gt", (below, Const(0.0, below.dtype)), DType.BOOL)
    return with_body(simple, Apply("select", (positive, quotient, other), body.dtype))


def _tested(body: Scalar) -> Scalar | None:
    """What a body asks whether it is NaN."""
    return body.args[0] if isinstance(body, Apply) and body.op == "isnan" else None


def _quotient(body: Scalar) -> tuple[Arg, Arg] | None:
    """The operands of a quotient of floats."""
    if not (isinstance(body, Apply) and body.op == "div" and body.dtype.is_float):
        return None
    above, below = body.args
    return (above, below) if isinstance(above, Arg) and isinstance(below, Arg) else None


def _is_softmax(op: Generic, above: Arg, below: Arg, producers: Mapping[Value, Op]) -> bool:
    """Whether ``above / below`` are exponentials, at most 1, over their row's sum."""
    exps = producers.get(op.inputs[above.index])
    if not isinstance(exps, Generic) or exps.combiner is not None:
        return False
    if not _reduces(producers.get(op.inputs[below.index]), "add", exps.output, op, (above, below)):
        return False
    if not (isinstance(exps.body, Apply) and exps.body.op == "exp"):
        return False
    (shifted,) = exps.body.args
    if not (isinstance(shifted, Apply) and shifted.op == "sub"):
        return False
    scores, top = shifted.args[0], floored(shifted.args[1])
    if not isinstance(scores, Arg) or top is None:
        return False
    largest = producers.get(exps.inputs[top[0].index])
    return _reduces(largest, "max", exps.inputs[scores.index], exps, (scores, top[0]))


def _reduces(
    reduction: Op | None, combiner: str, value: Value, reader: Generic, operands: tuple[Arg, Arg]
) -> bool:
    """Whether the second operand of ``reader`` combines a line of ``value``, in which the first lies."""
    if not isinstance(reduction, Generic) or reduction.combiner != combiner or reduction.inputs != (value,):
        return False
    if not isinstance(reduction.body, Arg) or len(reduction.reduced) != 1:
        return False
    reads, (at, row) = reduction.maps[0], (reader.maps[a.index] for a in operands)
    if reads is None or at is None or row is None or any(m.fill is not None for m in (reads, at, row)):
        return False
    along = [a for r, a in zip(reads.results, at.results, strict=True) if r.single == reduction.reduced[0]]
    return len(along) == 1 and reads.compose((*row.results, along[0])) == at
