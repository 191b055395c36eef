"""``mansard reduce``: models of every kind of failure, and what reproduces them."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import parser
from support.command_line import invoke

MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        y = (x @ x.mT).relu()
        return y.sum(-1), RESULT

def model():
    return Model(), (torch.ones(3, 5),)
"""


def run(*arguments: object) -> tuple[int, str]:
    result = invoke("reduce", *arguments)
    return result.exit_code, result.output


def test_of_a_wrong_result(tmp_path: Path) -> None:
    """Exponentials differ from NumPy's in their last bit, which is wrong where nothing is allowed."""
    file = tmp_path / "net.py"
    file.write_text(MODEL.replace("RESULT", "torch.tanh(torch.exp(y / 15))"))
    small = tmp_path / "small.mir"
    options = ["--tolerance", "0", "-o", str(tmp_path / "small"), "--json"]
    result = invoke("reduce", f"{file}:model", *options)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["failure"]["kind"] == "wrong"
    assert record["ops"] == 1 < record["ops_before"]
    assert record["files"][0] == str(small)
    code, output = run(*record["command"].split()[2:])
    assert code == 1
    assert "a wrong result" in output
    code, output = run(small, "--check", "--tolerance", 1e-3)
    assert (code, output) == (0, "it compiles, and gives the interpreter's results\n")


def test_of_a_pytorch_program_that_cannot_be_imported(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(MODEL.replace("RESULT", "torch.linalg.eigh(y)[0] * 2"))
    code, output = run(f"{file}:model", "-o", tmp_path / "small")
    assert code == 0, output
    assert "unsupported op 'aten._linalg_eigh'" in output
    assert "ops became 1 in" in output
    assert (tmp_path / "small.pt2").exists()


def test_of_an_onnx_model_that_cannot_be_imported(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
    net (float[2, 3] x, float[3, 3] w) => (float[2, 3] y) {
        a = MatMul (x, w)
        b = Relu (a)
        c = com.example.Odd (b)
        d = Add (b, c)
        y = Tanh (d)
    }
    """
    path = tmp_path / "net.onnx"
    onnx.save(parser.parse_model(text), path)
    code, output = run(path, "-o", tmp_path / "small")
    assert code == 0, output
    assert "com.example.Odd" in output
    assert "5 ops became 1 in" in output
    assert len(onnx.load(tmp_path / "small.onnx").graph.node) == 1


def test_of_a_model_that_does_not_fail(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(MODEL.replace("RESULT", "y"))
    code, output = run(f"{file}:model", "-o", tmp_path / "small")
    assert code == 1
    assert "does not fail on cpu" in output
    assert not list(tmp_path.glob("small*"))


@pytest.mark.parametrize("argument", ["missing.onnx", "net.txt"])
def test_of_what_is_no_model(argument: str, tmp_path: Path) -> None:
    assert run(tmp_path / argument)[0] == 2
