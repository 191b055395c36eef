"""The zoo's models: imported, run in the reference interpreter, compared with PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import zoo

from mansard.frontends import import_model
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Attention
from mansard.ir.parser import parse_graph
from mansard.ir.printer import print_graph
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import pipeline


def imported(model: zoo.ZooModel) -> Graph:
    graph = import_model(model.module, model.args, dynamic_shapes=model.dynamic_shapes)
    for g in (graph, run_passes(graph, pipeline()[:6])):
        text = print_graph(g, locations=True)
        assert print_graph(parse_graph(text), locations=True) == text
    return graph


def compare(graph: Graph, model: zoo.ZooModel, args: tuple[torch.Tensor, ...], tolerance: float) -> None:
    with torch.no_grad():
        expected = model.module(*args).float().numpy()
    (out,) = interpret(graph, [a.numpy() for a in args])
    np.testing.assert_allclose(out.astype(np.float32), expected, atol=tolerance * np.abs(expected).max())


def attentions(graph: Graph) -> list[Attention]:
    return [op for op in graph.ops if isinstance(op, Attention)]


# The dynamic import is compared at the static one's length too.
@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_minilm(dynamic: bool) -> None:
    model = zoo.minilm(dynamic=dynamic, layers=2)
    graph = imported(model)
    assert [v.name for v in graph.inputs] == ["input_ids", "attention_mask"]
    assert len(attentions(graph)) == 2
    assert all(op.inputs[3].type.shape[1] == 1 for op in attentions(graph))  # the mask is not spread
    ids, mask = model.args
    for n in (16, 5, 1) if dynamic else (16,):
        compare(graph, model, (ids[:, :n], mask[:, :n]), 2e-6)


def test_mobilenet() -> None:
    model = zoo.mobilenet(96, repeated=False)  # the interpreter takes long for larger images
    graph = imported(model)
    assert not any("f64" in str(op.output.type) for op in graph.ops if op.outputs)
    compare(graph, model, model.args, 3e-5)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [1_000, pytest.param(151_936, marks=pytest.mark.slow)])
def test_qwen3(dtype: torch.dtype, vocabulary: int) -> None:
    model = zoo.qwen3(layers=1, dtype=dtype, vocabulary=vocabulary)
    graph = imported(model)
    assert graph.dims()["seq"].max == 512
    assert sum("embed_tokens" in c.key or "lm_head" in c.key for c in graph.constants.values()) == 1
    for op in attentions(graph):
        assert (op.inputs[0].type.shape[1], op.inputs[1].type.shape[1]) == (16, 8)
    for n in (16, 1):
        compare(graph, model, (model.args[0][:, :n],), 3e-6 if dtype is torch.float32 else 2e-2)
