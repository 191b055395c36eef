"""The report of what of a model has named ops."""

from __future__ import annotations

from mansard.ir import GraphBuilder
from mansard.testing.graphs import F32, matmul, unary
from tools.raising_report import report


def test_a_report_has_shares_regions_kinds_and_reasons() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 8), F32)
    ordered, _ = b.sort(unary(b, "tanh", matmul(b, x, x)), 1)
    text = report(b.build([matmul(b, ordered, x)]))
    assert text.splitlines() == [
        "100.0% of 1,024 multiply-adds are in named ops",
        "regions where all are taken: 2",
        "named ops: 2 MatMul, 1 tanh",
        "not raised: 1 ops, sort has no named form",
    ]
