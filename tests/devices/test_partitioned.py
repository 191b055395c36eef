"""Dispatches partitioned over the CPU and a Vulkan device give what the reference gives, with any shares."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.graph_runner import compare, compiled, outputs
from support.graphs import F32, matmul, unary
from support.heavy_graphs import GRAPHS, weight
from typer.testing import CliRunner

from mansard import dims
from mansard.cli.main import app
from mansard.dims import Dim
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.placement import PlacementOptions

pytestmark = pytest.mark.vulkan
SPLIT = PlacementOptions(split="all")
CALLS = 6
"""In which shares change by what is measured, whatever that is here."""


def data(graph, sizes=None):
    rng = np.random.default_rng(0)
    shapes = [v.type.concrete(sizes or {}) for v in graph.inputs]
    return [
        rng.standard_normal(s).astype(v.type.dtype.numpy) for s, v in zip(shapes, graph.inputs, strict=True)
    ]


@pytest.mark.parametrize("name", GRAPHS)
def test_partitioned_dispatches(name):
    graph = GRAPHS[name]()
    inputs = data(graph)
    expected = interpret(graph, inputs)
    with compiled(graph, "cpu", "vulkan", placement=SPLIT) as model:
        assert model.shares
        for _ in range(CALLS):
            compare(outputs(model, inputs), expected, rtol=1e-4, atol=1e-4)
        assert len(model.shares) == 1
        reasons = {d.reason for d in model.plan.decisions if d.reason.startswith("split: ")}
        assert len(reasons) == 2


def test_dims_of_the_model_stay_dims_of_the_model():
    b = GraphBuilder()
    n = Dim("n", 1, 96)
    x = b.input("x", (dims.symbol(n), 64), F32)
    graph = b.build([unary(b, "tanh", matmul(b, x, weight(b, 64, 512)))])
    with compiled(graph, "cpu", "vulkan", placement=SPLIT) as model:
        assert model.dims == (n,)
        assert [share.dim for share in model.shares] == ["columns"]
        for rows in (1, 7, 96, 7):
            inputs = data(graph, {"n": rows})
            compare(outputs(model, inputs), interpret(graph, inputs), rtol=1e-4, atol=1e-4)


def test_nothing_is_partitioned_unless_asked_for():
    graph = GRAPHS["product"]()
    for split in ("off", "auto"):  # it is far too small to gain anything
        with compiled(graph, "cpu", "vulkan", placement=PlacementOptions(split=split)) as model:
            assert not model.shares
            assert not any(d.reason.startswith("split") for d in model.plan.decisions)


def test_reports_tell_what_is_partitioned(tmp_path):
    path = tmp_path / "partitioned.mansard"
    with compiled(GRAPHS["product"](), "cpu", "vulkan", placement=SPLIT) as model:
        model.save(path)

    def run(*arguments):
        result = CliRunner().invoke(app, [*arguments, "--json"])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    (share,) = run("bench", str(path), "--runs", "2", "--timeline")["shares"]
    assert (share["dim"], share["total"], share["dispatches"]) == ("rows", 64, 1)
    assert set(share["parts"]) == {"cpu", "vulkan"} and sum(share["parts"].values()) == pytest.approx(1)
    reasons = [row["reason"] for row in run("explain", str(path))["decisions"]]
    assert [reason.startswith("split: ") for reason in reasons] == [True, True]
    assert run("simulate", str(path))["latency_ms"] > 0
