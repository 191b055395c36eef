"""`import_model` finds the frontend, and imports no framework to do so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mansard.errors import ImportModelError
from mansard.frontends import import_model

IDENTITY = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\nreturn %a : tensor<2xf32>\n}"


def test_mlir_text_and_files(tmp_path: Path) -> None:
    path = tmp_path / "identity.mlir"
    path.write_text(IDENTITY)
    for source in (IDENTITY, path, str(path)):
        assert [v.name for v in import_model(source).inputs] == ["arg0"]
    with pytest.raises(ImportModelError, match="takes no example inputs"):
        import_model(IDENTITY, [np.zeros(2)])


@pytest.mark.parametrize("model", [3, None, np.zeros(3), "model.txt", Path("model.bin"), "some words"])
def test_unknown_kinds_list_what_is_supported(model: object) -> None:
    with pytest.raises(ImportModelError, match=r"no frontend reads .*torch\.nn\.Module.*\.pt2.*\.mlir"):
        import_model(model)


def test_frameworks_are_imported_only_for_their_models() -> None:
    program = f"""
import sys
from mansard.errors import ImportModelError
from mansard.frontends import import_model
try:
    import_model("model.txt")
except ImportModelError:
    pass
assert not {{"torch", "torch_mlir"}} & set(sys.modules)
import_model({IDENTITY!r})
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


TOY = """
from mansard.frontends import Frontend
from mansard.ir import GraphBuilder
from mansard.dtypes import DType

class Toy(Frontend):
    name, reads, requires = "toy", "toy models (a .toy file)", "mansard-toy[all]"

    def accepts(self, model):
        return str(model).endswith(SUFFIX)

    def import_model(self, model, example_inputs=None, *, cache, size=2):
        if size > 8:
            import toy_framework
        b = GraphBuilder("toy")
        x = b.input("x", (size,), DType.F32)
        return b.build([b.reshape(x, (1, size))])

FRONTEND = Toy()
"""


def out_of_tree(folder: Path, suffix: str = ".toy", value: str = "toy_frontend:FRONTEND") -> Path:
    """A folder as pip leaves it: a package with a frontend, and its entry points."""
    (folder / "toy_frontend.py").write_text(TOY.replace("SUFFIX", repr(suffix)))
    info = folder / "toy_frontend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy_frontend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mansard.frontends]\ntoy = {value}\n")
    return folder


def answers(folder: Path, *expressions: str) -> list[str]:
    """What expressions give in one process that has the folder's packages installed."""
    program = (
        f"import sys; sys.path.append({str(folder)!r})\n"
        "from mansard.errors import MansardError\n"
        "from mansard.frontends import frontends, import_model\n"
    )
    for expression in expressions:
        program += f"try:\n    print({expression})\nexcept MansardError as error:\n    print(error)\n"
        program += f"print({END!r})\n"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    *texts, rest = done.stdout.split(END)
    assert (len(texts), rest.strip()) == (len(expressions), "")
    return texts


END = "// end of an answer"


def test_a_frontend_of_another_package_is_found(tmp_path: Path) -> None:
    imported, names, listed = answers(
        out_of_tree(tmp_path),
        "import_model('model.toy', size=3)",
        "list(frontends())",
        "import_model('model.other')",
    )
    assert "reshape %x" in imported
    assert "linalg" in names and "toy" in names
    assert "no frontend reads 'model.other'" in listed and "toy models (a .toy file) by toy" in listed


def test_the_command_line_reads_files_of_another_frontend(tmp_path: Path) -> None:
    folder = out_of_tree(tmp_path)
    (tmp_path / "model.toy").write_text("")

    program = f"import sys; sys.path.append({str(folder)!r})\nfrom mansard.cli.main import app\n"
    for file in ("model.toy", "model.other"):
        command = ["compile", str(tmp_path / file), "--device", "cpu", "--stop-after", "fuse"]
        program += f"try:\n    app({command!r})\nexcept SystemExit as end:\n    print('exit', end.code)\n"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("dispatch ")
    assert re.findall(r"^exit (\d+)$", done.stdout, re.MULTILINE)[0] == "0"
    assert len(re.findall(r"^exit [1-9]$", done.stdout, re.MULTILINE)) == 1
    refused = " ".join(done.stderr.replace("│", " ").split())
    assert ".pt2, .onnx, .tflite, .jax, .mlir, .mlirbc, .mir, FILE.py:FUNCTION, " in refused
    assert "decoder language models (Hugging Face folder, .gguf file)" in refused
    assert "toy models (a .toy file)" in refused


def test_a_package_that_a_frontend_lacks_is_named_with_its_remedy(tmp_path: Path) -> None:
    (text,) = answers(out_of_tree(tmp_path), "import_model('model.toy', size=9)")
    assert "frontend 'toy' needs a package that is not installed (toy_framework)" in text
    assert "pip install 'mansard-toy[all]'" in text


def test_two_frontends_for_one_model_are_an_error_that_a_name_settles(tmp_path: Path) -> None:
    both, named, unknown = answers(
        out_of_tree(tmp_path, suffix=".mlir"),
        "import_model('model.mlir')",
        "import_model('model.mlir', frontend='toy')",
        "import_model('model.mlir', frontend='keras')",
    )
    assert "frontends linalg and toy both read 'model.mlir'" in both and "frontend='linalg'" in both
    assert "reshape %x" in named
    assert "no frontend 'keras'" in unknown


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("toy_frontend:MISSING", "frontend 'toy' failed to load: module 'toy_frontend' has no attribute"),
        ("toy_frontend_absent:FRONTEND", "frontend 'toy' failed to load: No module named"),
        ("toy_frontend:Toy", "frontend 'toy' is not a mansard.frontends.Frontend object"),
    ],
)
def test_a_broken_plug_in_leaves_the_others_usable_and_is_reported(
    tmp_path: Path, value: str, reason: str
) -> None:
    folder = out_of_tree(tmp_path, value=value)
    other, broken = answers(folder, f"import_model({IDENTITY!r})", "import_model('model.toy')")
    assert "%arg0" in other
    assert reason in broken
