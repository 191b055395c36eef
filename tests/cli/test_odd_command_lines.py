"""Odd values on the command line: every command ends with a line that says what was wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import invoke

import mansard

SOUND = ["--input", "2x4xf32=1"]
INPUTS = [
    *("@missing.npy", "@damaged.npy", "@objects.npy", "@huge.npy", "@deep.npy", "@folder.npy", "@a\0.npy"),
    *("@three.bin", "2x4xf32=@three.bin", "2x4xf32=@missing", "2x4xf32=@a\0", "@" + "x" * 300 + ".npy"),
    *("99999999999999999999x4xf32", "2x" + "9" * 5000 + "xf32", "100000x100000x1000xf32=1", "0x4xf32"),
    *("2x4xf33", "2x4xi64=999999999999999999999", "2x4xf32=a,b", "x", "", "2x4xf32=1,1,1"),
    *("=2x4xf32", "bogus=2x4xf32", "2x4xbool=7", "2x4xu8=-1", "2x4xi4=100", "\ud800", "2x4xf8=3"),
]
PLACES = ["/nonexistent/y.npy", "folder.npy", "a\0.npy", "x" * 300 + ".npy"]
FILES = ["pipe", "folder.npy", "missing", "", "three.bin", "a\0b", "\udcff", "x" * 300, "/dev/zero"]
COMMANDS = [
    *(["run", "m.mansard", "--input", text] for text in INPUTS),
    *(["run", "m.mansard", *SOUND, "--output", f"@{place}"] for place in PLACES),
    *(["run", "m.mansard", *SOUND, "--output", text] for text in ("@", "y", "bogus=@y.npy")),
    *(["run", "m.mansard", *SOUND, "--device", text] for text in ("", "bogus", "cpu:9", "cpu\0", "x" * 9999)),
    ["run", "m.mansard", *SOUND, "--limits", "bogus"],
    *(["run", file, *SOUND] for file in FILES),
    *([command, file] for command in ("bench", "explain", "simulate", "tune") for file in FILES),
    *(["trace", file, "-o", "t.json"] for file in FILES),
    *(["devices", "--artifact", file] for file in FILES if file),
    *(["sign", file, "--key", "k.pem"] for file in FILES),
    *(["sign", "m.mansard", "--key", file] for file in FILES if file != "pipe"),
    *(["run", "m.mansard", *SOUND, "--trusted-key", file] for file in FILES if file != "pipe"),
    *(["keygen", file] for file in ("/nonexistent/k", "folder.npy", "a\0", "")),
    *(["bench", "m.mansard", "--runs", "1", "--html", place] for place in PLACES),
    *(["trace", "m.mansard", "-o", place] for place in PLACES),
    *(["explain", "m.mansard", "--html", place] for place in PLACES),
    *(
        ["explain", "m.mansard", "--html", "y.html", "--timeline", file]
        for file in ("three.bin", "damaged.json", "deep.json", "list.json", "missing", "a\0")
    ),
    *(
        ["simulate", "m.mansard", "--profile", file]
        for file in ("three.bin", "odd.toml", "missing.toml", "bogus", "folder.npy", "a\0.toml")
    ),
    *(["simulate", "m.mansard", "--size", text] for text in ("x", "n=1e9", "n=" + "9" * 5000)),
    *(
        ["compile", model, "-o", "out.mansard", "--device", "cpu"]
        for model in (
            "syntax.py:f",
            "raises.py:f",
            "raises.py:g",
            "raises.py:h",
            "raises.py:none",
            "top.py:f",
        )
    ),
    *(["compile", f"{file}.pt2", "-o", "o", "--device", "cpu"] for file in FILES),
    *(["tune", "m.mansard", "--budget", text] for text in ("x", "-1s", "1e400s", "nan", "")),
    ["calibrate", "--device", "bogus"],
    ["calibrate", "--budget", "x"],
    ["demo", "--file", "missing"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("odd")
    before = Path.cwd()
    os.chdir(folder)
    with mansard.compile(torch.nn.Linear(4, 4), (torch.zeros(2, 4),), devices="cpu") as model:
        model.save("m.mansard")
    np.save("objects.npy", np.array([object()]), allow_pickle=True)
    numpy_header = b"\x93NUMPY\x01\x00v\x00"
    shape = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 1000), }"
    contents = {
        "damaged.npy": b"\x93NUMPY\x01\x00rubbish",
        "huge.npy": numpy_header + shape.ljust(117) + b"\n",
        "deep.npy": numpy_header + (b"(" * 110).ljust(117) + b"\n",
        "three.bin": b"abc",
        "damaged.json": b"\xff{",
        "deep.json": b"[" * 100_000,
        "list.json": b"[1, 2]",
        "odd.toml": b"[cpu]\nbandwidth = 'x'\n",
        "syntax.py": b"not python(",
        "raises.py": b"def f(): raise KeyError('x')\ndef g(): return 3\ndef h(): return None, None\n",
        "top.py": b"1 / 0\n",
    }
    for name, content in contents.items():
        Path(name).write_bytes(content)
    os.mkfifo("pipe")
    Path("folder.npy").mkdir()
    assert invoke("keygen", "k.pem").exit_code == 0
    yield folder
    os.chdir(before)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: ascii(" ".join(command))[:60])
def test_a_command_ends_with_a_line(folder: Path, command: list[str]) -> None:
    result: Any = invoke(*command)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1, 2)
    assert "Traceback" not in result.stderr
    if result.exit_code == 1:
        (line,) = result.stderr.strip().splitlines()
        assert line.startswith("mansard: ")
        assert 15 < len(line) < 12_000
    (folder / "m.mansard").stat()


def test_tracebacks_of_a_user_s_program_can_be_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = invoke("compile", "raises.py:f", "-o", "o").stderr
    assert "raises.py:f failed at raises.py:1: KeyError: 'x'" in line
    monkeypatch.setenv("MANSARD_TRACEBACK", "1")
    result = invoke("compile", "raises.py:f", "-o", "o")
    assert isinstance(result.exception.__cause__, KeyError)


def test_names_that_are_no_text_are_printed(folder: Path) -> None:
    result = invoke("run", "m.mansard", *SOUND, "--output", "@\udcff.npy")
    assert result.exit_code == 0, result.stderr
    assert "\\udcff.npy" in result.stdout
    assert Path("\udcff.npy").exists()
