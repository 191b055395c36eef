"""Real models in the middle of their compilation: every dump is a graph to read, and to compile further."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support import zoo  # noqa: E402  # after the check that torch is there

import mansard  # noqa: E402
from mansard.compiler import CompileOptions, lower_graph  # noqa: E402
from mansard.frontends import import_model  # noqa: E402
from mansard.ir import Graph  # noqa: E402
from mansard.ir.graph_file import write_graph  # noqa: E402
from mansard.ir.parser import parse_graph  # noqa: E402

MODELS: dict[str, Callable[[], zoo.ZooModel]] = {
    "minilm": lambda: zoo.minilm(dynamic=True, layers=2),
    "mobilenet": lambda: zoo.mobilenet(32, 0.35, repeated=False),
    "qwen3": lambda: zoo.qwen3(1, vocabulary=1000),
}


@functools.cache
def imported(name: str) -> tuple[Graph, tuple[Any, ...]]:
    model = MODELS[name]()
    return import_model(model.module, model.args, dynamic_shapes=model.dynamic_shapes), model.args


# The encoder's ops are among those of the decoder; the text of every op is in tests/ir.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n != "qwen3" else []) for n in MODELS]
)
def test_the_text_after_every_pass_reads_back(name: str) -> None:
    graph, _ = imported(name)
    texts: list[str] = []
    options = CompileOptions(("vulkan:h200",), precision="bf16", dump=lambda _, text: texts.append(text))
    lower_graph(graph, options)
    graphs = [text for text in texts if text.startswith("graph ")]
    assert len(graphs) > 10
    for text in graphs:
        assert str(parse_graph(text)) == text


@pytest.mark.parametrize("name", [pytest.param("mobilenet", marks=pytest.mark.slow), "qwen3"])
def test_a_dump_compiles_to_the_same_model(name: str, tmp_path: Path) -> None:
    graph, inputs = imported(name)
    path = tmp_path / "graph.mir"
    stopped = lower_graph(graph, CompileOptions(stop_after="canonicalise"))
    assert isinstance(stopped, Graph)
    write_graph(stopped, path, weights=True)
    whole = tmp_path / "before.mir"
    write_graph(graph, whole, weights=True)
    arrays = [tensor.numpy() for tensor in inputs]
    with (
        mansard.compile(path, devices="cpu", start="inline_into_gathers") as continued,
        mansard.compile(whole, devices="cpu") as direct,
    ):
        np.testing.assert_array_equal(continued(*arrays), direct(*arrays))
