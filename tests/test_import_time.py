"""Importing is quick, and brings in neither the compiler nor a framework."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "torch_mlir", "llvmlite", "transformers", "onnx", "jax", "tensorflow")


def imported_by(code: str) -> tuple[set[str], float]:
    """Modules after running ``code`` in a fresh interpreter, and its seconds."""
    script = (
        "import json, sys, time\n"
        f"start = time.perf_counter()\n{code}\n"
        "print(json.dumps([sorted(sys.modules), time.perf_counter() - start]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules, seconds = json.loads(done.stdout)
    return set(modules), seconds


def test_import_is_light():
    modules, _ = imported_by("import mansard")
    assert not modules & {*HEAVY, "numpy"}
    assert {m for m in modules if m.startswith("mansard")} == {"mansard", "mansard.errors"}
    fastest = min(imported_by("import mansard")[1] for _ in range(3))
    assert fastest < 0.3


@pytest.mark.parametrize(
    "code",
    [
        "from mansard import Model, load",
        "import mansard; mansard.devices()",
        "from mansard.language.tokenizer import load_tokenizer",
    ],
)
def test_the_runtime_needs_no_compiler(code):
    modules, _ = imported_by(code)
    assert not modules & set(HEAVY)
    compiler = ("ir", "passes", "placement", "schedule", "codegen", "frontends", "compiler")
    assert not [m for m in modules if m.startswith(tuple(f"mansard.{name}" for name in compiler))]


def test_language_models_bring_in_no_event_loop():
    modules, _ = imported_by("from mansard.language import load_lm")
    assert not modules & {*HEAVY, "asyncio", "ssl", "decimal", "tokenizers", "jinja2"}


def test_every_public_name_is_there():
    import mansard

    assert len(set(mansard.__all__)) == len(mansard.__all__)
    for name in mansard.__all__:
        assert getattr(mansard, name) is not None
        assert name in dir(mansard)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mansard.nothing  # noqa: B018  # the access is the test
