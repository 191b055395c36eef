"""The comparison and the table of ONNX's node tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.onnx_nodes.table import counts, section, write_section
from benchmarks.onnx_nodes.worker import compare


def test_a_result_of_another_type_shape_or_value_differs() -> None:
    expected = [np.array([1.0, np.nan], np.float32)]
    assert compare(expected, expected, 1e-3, 0) == ""
    assert "float64" in compare([expected[0].astype(np.float64)], expected, 1e-3, 0)
    assert "[1, 2]" in compare([expected[0][None]], expected, 1e-3, 0)
    assert compare([np.array([1.1, np.nan], np.float32)], expected, 1e-3, 0)
    assert compare([np.array([1.1, np.nan], np.float32)], expected, 1e-3, 0, values=False) == ""
    assert compare([], expected, 1e-3, 0) == "0 results, 1 expected"


def test_the_table_replaces_itself_in_a_document(tmp_path: Path) -> None:
    path = tmp_path / "coverage.md"
    path.write_text("# Head\n\nText.\n")
    rows = [
        {"case": "a", "op": "Add", "device": "cpu", "outcome": "passed", "detail": ""},
        {"case": "b", "op": "Add", "device": "cpu", "outcome": "unsupported", "detail": "E: no strings"},
    ]
    assert counts(rows)["cpu"]["unsupported"] == 1
    for _ in range(2):
        write_section(path, section(rows, "1.0", "make it"))
    text = path.read_text()
    assert text.startswith("# Head\n\nText.\n")
    assert text.count("| Add | 1 of 2 | no strings |") == 1
