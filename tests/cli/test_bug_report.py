"""``mansard compile --report``: what a bug report needs, without weights."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from support.command_line import invoke

MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        torch.nn.init.normal_(self.linear.weight, generator=torch.Generator().manual_seed(0))

    def forward(self, x):
        return OP

def model():
    return Model(), (torch.ones(2, 64),)
"""


def run(tmp_path: Path, op: str) -> tuple[int, str, dict[str, object], zipfile.ZipFile]:
    file, report = tmp_path / "net.py", tmp_path / "report.zip"
    file.write_text(MODEL.replace("OP", op))
    arguments = ["compile", f"{file}:model", "-o", str(tmp_path / "a.mansard"), "--device", "cpu", "--report"]
    result = invoke(*arguments, report)
    archive = zipfile.ZipFile(report)
    return result.exit_code, result.output, json.loads(archive.read("report.json")), archive


def test_of_a_compilation(tmp_path: Path) -> None:
    code, output, record, archive = run(tmp_path, "self.linear(x).relu()")
    assert code == 0, output
    assert record["error"] is None
    assert {"python", "numpy", "torch", "mansard"} <= set(record["versions"])  # type: ignore[call-overload]
    assert [device["id"] for device in record["devices"]][:1] == ["cpu"]  # type: ignore[attr-defined]
    assert {"import", "fuse", "kernels"} <= set(record["stages"])  # type: ignore[call-overload]
    assert "example_inputs" in record["options"]  # type: ignore[operator]
    names = archive.namelist()
    assert names[0] == "000-before.mir" or "000-before.mir" in names
    everything = b"".join(archive.read(name) for name in names)
    assert b"linear.weight" in everything
    weights = torch.empty(64, 64).normal_(generator=torch.Generator().manual_seed(0)).flatten()
    for weight in weights[:100].numpy():
        assert weight.tobytes() not in everything and f"{weight:.5f}".encode() not in everything


def test_of_a_failure(tmp_path: Path) -> None:
    code, output, record, archive = run(tmp_path, "torch.linalg.svd(self.linear(x))[0]")
    assert code == 1, output
    assert "linalg_svd" in str(record["error"])
    assert "net.py" in archive.read("error.txt").decode()


@pytest.mark.parametrize("path", ["missing/report.zip", "."])
def test_a_place_that_cannot_be_written(tmp_path: Path, path: str) -> None:
    file = tmp_path / "net.py"
    file.write_text(MODEL.replace("OP", "x"))
    arguments = ["compile", f"{file}:model", "-o", str(tmp_path / "a.mansard"), "--device", "cpu", "--report"]
    result = invoke(*arguments, tmp_path / path)
    assert result.exit_code != 0
    assert "--report" in result.output
