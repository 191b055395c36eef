"""Dumps of the IR, to a function and to the folder that MANSARD_DUMP names."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.graphs import F32, matmul, unary

from mansard.compiler import CompileOptions, compile_graph, dumps, lower_graph
from mansard.errors import CompileError
from mansard.ir import Graph, GraphBuilder


@pytest.fixture
def graph() -> Graph:
    b = GraphBuilder()
    x, w, dead = (b.input(name, (4, 4), F32) for name in ("x", "w", "dead"))
    unary(b, "exp", dead)
    x = b.slice(x, (0, 0), (2, 4), (1, 1))
    return b.build([unary(b, "neg", matmul(b, x, w))])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    dumps._folder.cache_clear()
    monkeypatch.setenv("MANSARD_DUMP", str(tmp_path / "dump"))
    return tmp_path / "dump"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_pass_that_changes_something_has_a_numbered_file(graph: Graph, folder: Path) -> None:
    texts: list[tuple[str, str]] = []
    compile_graph(graph, CompileOptions(dump=lambda name, text: texts.append((name, text))))
    written = names(folder)
    assert written[:3] == ["000-before.mir", "001-eliminate_dead.mir", "002-lower_views.mir"]
    assert [name.split("-", 1)[1].rpartition(".")[0] for name in written] == [name for name, _ in texts]
    for name, (_, text) in zip(written, texts, strict=True):
        assert (folder / name).read_text().rstrip("\n") == text.rstrip("\n")
    assert written[-1].endswith("code-cpu.txt") and written[-2].endswith("kernels-cpu.txt")


def test_later_compilations_of_a_process_overwrite_nothing(graph: Graph, folder: Path) -> None:
    lower_graph(graph, CompileOptions(stop_after="eliminate_dead"))
    lower_graph(graph, CompileOptions(stop_after="eliminate_dead"))
    assert names(folder) == [
        "000-before.mir", "001-eliminate_dead.mir", "002-before.mir", "003-eliminate_dead.mir",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("eliminate_dead", ["000-eliminate_dead.mir", "001-eliminate_dead.mir"]),
        ("canonicalise", ["000-canonicalise.mir"]),
        ("read_through_copies", ["000-read_through_copies.mir"]),
        ("fuse", ["000-fuse.mir"]),
        ("before", ["000-before.mir"]),
    ],
)
def test_one_pass_alone(
    graph: Graph, folder: Path, monkeypatch: pytest.MonkeyPatch, only: str, expected: list[str]
) -> None:
    monkeypatch.setenv("MANSARD_DUMP", f"{folder}:{only}")
    compile_graph(graph)
    assert names(folder) == expected


def test_an_unknown_pass_is_an_error_that_lists_the_known(
    graph: Graph, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MANSARD_DUMP", f"{folder}:simplfy")
    with pytest.raises(CompileError, match=r"MANSARD_DUMP=.*: no pass 'simplfy' in the pipeline; .*simplify"):
        compile_graph(graph)
    assert not folder.exists()
