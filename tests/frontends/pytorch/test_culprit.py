"""Which op is named when lowering a graph ends the worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.frontends.torch_import import as_module
from torch import nn

from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends import import_model
from mansard.frontends.mlir_worker import pool
from mansard.frontends.mlir_worker.process import WorkerDiedError
from mansard.frontends.pytorch import lowering
from mansard.frontends.pytorch.culprit import culprit
from mansard.frontends.pytorch.export import quiet


class Cosine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1).cos()


def _graph(function: Any, *inputs: torch.Tensor) -> torch.fx.Graph:
    with quiet():
        return torch.export.export(as_module(function), inputs).run_decompositions({}).graph


def _targets(graph: torch.fx.Graph) -> list[str]:
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]


def test_an_op_that_crashes_alone_is_named() -> None:
    graph = _graph(lambda x: (x.sin() + 1).cos() * 2, torch.randn(3))
    parts = []

    def dies(part: torch.fx.Graph) -> bool:
        parts.append(_targets(part))
        return "aten.cos.default" in parts[-1]

    assert str(culprit(graph, dies).target) == "aten.cos.default"
    assert parts == [["aten.sin.default"], ["aten.add.Tensor"], ["aten.cos.default"]]


def test_an_op_that_crashes_after_another_is_named() -> None:
    graph = _graph(lambda x: ((x.sin() + 1).cos() * 2).exp().tan(), torch.randn(3))
    node = culprit(graph, lambda part: {"aten.add.Tensor", "aten.exp.default"} <= set(_targets(part)))
    assert str(node.target) == "aten.exp.default"


def test_equal_ops_are_tried_once() -> None:
    graph = _graph(lambda x: x.sin().sin().sin().cos(), torch.randn(3))
    tried = []
    culprit(graph, lambda part: bool(tried.append(_targets(part)) or "aten.cos.default" in tried[-1]))
    assert tried == [["aten.sin.default"], ["aten.cos.default"]]


def test_a_crash_is_an_error_with_op_and_location(monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(module: bytes, pipelines: Any, seconds: float | None = None) -> bytes:
        if b"cos" in module:
            raise WorkerDiedError("was killed by SIGFPE")
        return pool.lower(module, pipelines, seconds)

    monkeypatch.setattr(lowering, "lower", lower)
    with pytest.raises(UnsupportedOpError, match=r"torch-mlir was killed by SIGFPE") as raised:
        import_model(Cosine(), torch.randn(3))
    assert raised.value.op == "aten.cos"
    assert "test_culprit.py" in raised.value.location


def test_a_crash_without_a_culprit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float | None] = []

    def lower(module: bytes, pipelines: Any, seconds: float | None = None) -> bytes:
        calls.append(seconds)
        if seconds is None:
            raise WorkerDiedError("was killed by SIGSEGV")
        return pool.lower(module, pipelines, seconds)

    monkeypatch.setattr(lowering, "lower", lower)
    with pytest.raises(ImportModelError, match="torch-mlir was killed by SIGSEGV"):
        import_model(as_module(lambda x: (x + 1).cos()), torch.randn(3))
    assert len(calls) > 1
