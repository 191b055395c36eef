"""tools/check_layout.py reports what breaks the rules of the layout."""

from __future__ import annotations

import importlib.util
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest
from support.paths import ROOT


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, looking at a folder of the test's own."""
    spec = importlib.util.spec_from_file_location("check_layout", ROOT / "tools" / "check_layout.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def write(folder: Path, files: dict[str, str]) -> list[PurePosixPath]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [PurePosixPath(name) for name in files]


def test_long_files_and_a_large_median(check: ModuleType, tmp_path: Path) -> None:
    files = {
        "mansard/a.py": "x = 1\n" * 500,
        "mansard/b.py": "x = 1\n" * 501,
        "src/long.c": "\n" * 501,
        "mansard/drivers/vulkan/vk.py": "x = 1\n" * 900,
    }
    assert list(check.sizes(write(tmp_path, files))) == [
        "mansard/b.py: 501 lines, at most 500",
        "src/long.c: 501 lines, at most 500",
        "mansard: the median file has 500 lines, at most 150",
    ]


def test_full_folders(check: ModuleType, tmp_path: Path) -> None:
    full = {f"docs/p{n}.md": "" for n in range(26)} | {f"mansard/m{n}.py": "" for n in range(25)}
    results = {f"benchmarks/results/machine/r{n}.json": "" for n in range(40)}
    assert list(check.folders(write(tmp_path, full | results))) == [
        "docs/: 26 files side by side, at most 25"
    ]


@pytest.mark.parametrize(
    "second",
    [
        "from mansard.a.x import f\n",
        "from mansard.a import x\n",
        "import mansard.a.x\n",
        "def g():\n    from mansard.a.x import f\n",
        "if TYPE_CHECKING:\n    from mansard.a.x import f\n",
        "from mansard.b.z import f\n",
    ],
)
def test_import_cycles_between_folders(check: ModuleType, tmp_path: Path, second: str) -> None:
    files = {
        "mansard/__init__.py": "from mansard.a.x import f\n",
        "mansard/a/__init__.py": "",
        "mansard/a/x.py": "from mansard.b.y import g\n",
        "mansard/b/__init__.py": "",
        "mansard/b/y.py": second,
        "mansard/b/z.py": "from mansard.a.x import f\n",
    }
    (cycle,) = check.cycles(write(tmp_path, files))
    assert cycle.startswith("import cycle between folders: mansard.a.x, mansard.b.y")


def test_cycles_within_a_folder_and_none_at_all(check: ModuleType, tmp_path: Path) -> None:
    files = {
        "mansard/a/__init__.py": "",
        "mansard/a/x.py": "from mansard.a import y\nfrom mansard.b import y as other\n",
        "mansard/a/y.py": "from mansard.a import x\n",
        "mansard/b/__init__.py": "",
        "mansard/b/y.py": "import os\n",
    }
    assert list(check.cycles(write(tmp_path, files))) == []
