"""`import_model` finds the frontend, and imports no framework to do so."""

from __future__ import annotations

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
