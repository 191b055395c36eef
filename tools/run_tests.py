"""Runs the tests as two processes side by side, each with a part of them that takes about as long.

    python tools/run_tests.py [pytest arguments]

With arguments it is pytest itself. The output of the first part is printed as it comes, that of the second
when both are done; the exit code is that of the first part that failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = ("unit", "models")
"""Folders of tests of the first part; the second has all others, so that a new folder is never left out."""
ALWAYS = ("--durations=15",)


def folders() -> tuple[list[str], list[str]]:
    """The folders with tests of both parts."""
    found = sorted({path.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/**/test_*.py")})
    first = [f"tests/{name}" for name in found if name in FIRST]
    return first, [f"tests/{name}" for name in found if name not in FIRST]


def main() -> int:
    """Run the parts; returns an exit code of pytest."""
    pytest = [sys.executable, "-m", "pytest", *ALWAYS]
    if sys.argv[1:]:
        return subprocess.run([*pytest, *sys.argv[1:]], cwd=ROOT, check=False).returncode
    first, second = folders()
    with tempfile.TemporaryFile() as output:
        beside = subprocess.Popen([*pytest, *second], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            codes = [subprocess.run([*pytest, *first], cwd=ROOT, check=False).returncode, beside.wait()]
        finally:
            beside.kill()
        output.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
