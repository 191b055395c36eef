"""tools/sanitize.py tells reports of the core from what others leave behind."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
LEAK = (
    "Direct leak of 64 byte(s) in 1 object(s) allocated from:\n    #0 0x7 in __interceptor_calloc a.cpp:77\n"
)
OTHERS = LEAK + "    #1 0x7 in LLVMPY_CreatePassBuilder (libllvmlite.so+0x4d)\n"
HANDLE = LEAK + "    #1 0x7 in mn_timeline_create /checkout/src/core/timeline.c:34\n"
LOST = LEAK + "    #1 0x7 in mn_queue_submit /checkout/src/core/queue.c:180\n"
HEADER = f"\n{'=' * 65}\n==7==ERROR: LeakSanitizer: detected memory leaks\n\n"
SUMMARY = "\nSUMMARY: AddressSanitizer: 64 byte(s) leaked in 1 allocation(s).\n"
RACE = "==================\nWARNING: ThreadSanitizer: data race (pid=7)\n  Write of size 4 at 0x7\n"
OVERFLOW = "src/cpu/pool.c:10:3: runtime error: signed integer overflow\n"
INVALID = "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x7\nREAD of size 4\n"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    sys.path.insert(0, str(TOOLS))
    try:
        spec = importlib.util.spec_from_file_location("sanitize", TOOLS / "sanitize.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(TOOLS))
    return module


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        (HEADER + OTHERS + "\n" + HANDLE + SUMMARY, 0),
        (HEADER + OTHERS + "\n" + LOST + "\n" + HANDLE + SUMMARY, 1),
        (RACE + "\n" + RACE + SUMMARY, 2),
        (OVERFLOW, 1),
        (INVALID + SUMMARY, 1),
    ],
)
def test_reports(tool: ModuleType, tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "report.7").write_text(text, encoding="utf-8")
    assert len(tool.reports(tmp_path)) == count
