"""Choosing a part of the pipeline by names of passes."""

from __future__ import annotations

import pytest
from support.graphs import F32

from mansard.errors import CompileError
from mansard.ir import Graph, GraphBuilder
from mansard.passes.pass_manager import Fixpoint, PassStep, pass_names, run_passes, select, with_unique_names
from mansard.passes.pipeline import PipelineSettings, canonical_steps, fusion_steps, graph_steps, pipeline


def noting(runs: list[str], name: str):
    def run(graph: Graph) -> Graph:
        runs.append(name)
        return graph

    return run


def example(runs: list[str]):
    one, two, three = (PassStep(noting(runs, name), name=name) for name in ("one", "two", "three"))
    needed = PassStep(noting(runs, "needed"), name="needed", required=True)
    idle = PassStep(noting(runs, "idle"), name="idle", when=False)
    loop = Fixpoint((two, three), name="loop")
    return with_unique_names((one, idle, loop, needed, one, loop))


def run(**selection) -> list[str]:
    runs: list[str] = []
    b = GraphBuilder()
    graph = b.build([b.reshape(b.input("x", (4,), F32), (2, 2))])
    run_passes(graph, select(example(runs), **selection))
    return runs


WHOLE = ["one", "two", "three", "needed", "one", "two", "three"]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({}, WHOLE),
        ({"stop_after": "one"}, WHOLE[:1]),
        ({"stop_after": "idle"}, WHOLE[:1]),
        ({"stop_after": "loop"}, WHOLE[:3]),
        ({"start": "loop"}, WHOLE[1:]),
        ({"start": "one.2"}, WHOLE[4:]),
        ({"start": "loop", "stop_after": "one.2"}, WHOLE[1:5]),
        ({"start": "needed", "stop_after": "needed"}, WHOLE[3:4]),
        ({"skip": ["one"]}, ["two", "three", "needed", "two", "three"]),
        ({"skip": ["one.2"]}, ["one", "two", "three", "needed", "two", "three"]),
        ({"skip": ["two"]}, ["one", "three", "needed", "one", "three"]),
        ({"skip": ["loop", "one"]}, ["needed"]),
    ],
)
def test_a_part_of_the_pipeline_runs(selection, expected):
    assert run(**selection) == expected


@pytest.mark.parametrize("option", ["start", "stop_after"])
def test_an_unknown_step_is_an_error_that_lists_the_steps(option):
    with pytest.raises(
        CompileError,
        match=r"no pass 'four' in the pipeline; its passes: one, idle, loop, needed; .* again is one\.2",
    ):
        run(**{option: "four"})
    with pytest.raises(CompileError, match="no pass 'two'"):  # it has no single place to stop at
        run(**{option: "two"})


def test_what_cannot_be_left_out():
    with pytest.raises(
        CompileError, match=r"no pass 'four' in the pipeline; its passes: one, idle, loop, two, three"
    ):
        run(skip=["four"])
    with pytest.raises(CompileError, match="pass 'needed' cannot be left out"):
        run(skip=["needed"])


def test_an_end_before_the_beginning():
    with pytest.raises(CompileError, match="pass 'one' stands before 'loop'"):
        run(start="loop", stop_after="one")


def test_steps_of_the_pipeline_have_unique_names_whatever_the_settings():
    default = pipeline()
    everything = pipeline(PipelineSettings("bf16", True, 64, (1 << 20, "vulkan"), lambda form: True))
    names = [step.name for step in default]
    assert names == [step.name for step in everything]
    assert len(set(names)) == len(names)
    fusion = ["fuse", "mark_packable", "mark_constants", "mark_in_place", "write_joins", "put_side_by_side"]
    assert [step.name for step in fusion_steps(default)] == fusion
    assert graph_steps(default) + fusion_steps(default) == default
    assert canonical_steps() == default[: names.index("canonicalise.3") + 1]
    assert "simplify" in pass_names(default)


def test_conditional_passes_run_under_their_condition():
    def running(settings: PipelineSettings) -> set[str]:
        return {s.name for s in pipeline(settings) if isinstance(s, PassStep) and s.when}

    cpu = running(PipelineSettings())
    assert running(PipelineSettings(precision="bf16")) - cpu == {"demote_products", "eliminate_dead.3"}
    assert running(PipelineSettings(gpu=True)) - cpu == {"split_reductions"}
    assert running(PipelineSettings(attention_workgroups=64)) - cpu == {"split_attention", "eliminate_dead.4"}
    assert running(PipelineSettings(buffer_limit=(1 << 20, "vulkan"))) - cpu == {"split_large_constants"}
