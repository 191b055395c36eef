"""Builds the native core under a sanitiser and runs tests with it; the exit code is 1 after any report.

    python tools/sanitize.py [--full] [address] [undefined] [thread] [-- pytest arguments]

Each sanitiser has a build of its own under ``build/sanitize/NAME``: the core compiled with
``-fsanitize=NAME`` and a package ``mansard`` whose other entries are links to this checkout. The
interpreter is not instrumented, so the sanitiser's runtime is preloaded.

What counts as a report:

- address: any error; and memory that the core allocated and nothing points to at exit, objects behind handles
  aside (tests count those). The interpreter and the software Vulkan driver keep memory until they end.
- undefined: any error (it is not recovered from).
- thread: races with at least one access in the core. Interceptors called by modules that are not instrumented
  are ignored; their locks are seen.

Before its tests a sanitiser has to report a fault made on purpose (tests/native/sanitizer_probe.c) through
the same interpreter: silence then means something.

Without tests named, those of the drivers, with the conformance suite, of the core, the runtime and several
devices run; with ``--full`` the conformance suite runs in every variation, the stress tests run longer, and
damaged plans and generated graphs are run too. docs/sanitizers.md says more.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from instrumented_core import EXTENSION, FLAGS, PACKAGE, ROOT, build, compiler

INSTRUMENTED = ("-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
RUNTIMES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
TESTS = ("tests/drivers", "tests/native", "tests/hal", "tests/runtime", "tests/devices")
MORE_TESTS = ("tests/artifact", "tests/fuzz")
FULL = {"MANSARD_CONFORMANCE": "all", "MANSARD_STRESS_REQUESTS": "10000", "MANSARD_SIGNAL_SECONDS": "60"}
# Builds instrumented programs of its own, which cannot be started with another runtime preloaded.
IGNORED = ("--ignore=tests/native/test_stress.py",)
# ASan keeps freed memory for a while, TSan what threads did: nothing is said of how much memory there is. In
# a forked process TSan takes new threads for those of the parent, by their identifiers.
SELECTED = {
    "address": ("-m", "not resident_memory and not slow"),
    "thread": ("-m", "not resident_memory and not threads_after_fork and not slow"),
}
UNMEASURED = {"MANSARD_STRESS_UNMEASURED": "1"}
OPTIONS = {
    # `handle_segv=0`: tests install handlers of their own. C++ libraries that are loaded do not annotate all
    # their containers. Freed memory is kept, so that a use after free is seen long afterwards.
    "address": "detect_leaks=1:handle_segv=0:detect_container_overflow=0:quarantine_size_mb=512",
    "undefined": "print_stacktrace=1",
    # Tests fork while threads run.
    "thread": "ignore_noninstrumented_modules=1:report_signal_unsafe=0:history_size=7:die_after_fork=0",
}
VARIABLES = {"address": "ASAN_OPTIONS", "undefined": "UBSAN_OPTIONS", "thread": "TSAN_OPTIONS"}
SEPARATOR = re.compile(r"\n(?=(?:Direct|Indirect) leak of |={18}\n|SUMMARY)")
CORE_FRAME = re.compile(r" in (mn_\w+|\w+) \S*src/(?:core|cpu|vulkan|python)/")
CORE = PACKAGE / EXTENSION
PROBE = ROOT / "tests" / "native" / "sanitizer_probe.c"


# Every interpreter among the tests says at its end if it used the core that is not instrumented.
_NOTE_OTHER_CORES = """
import atexit, os, sys

def note():
    if getattr(sys.modules.get("mansard._core"), "__file__", "") == {core!r}:
        with open(f"{folder}/report.core.{{os.getpid()}}", "w") as report:
            print("Sanitizer: this process used", {core!r}, *sys.orig_argv, file=report)

atexit.register(note)
"""


def build_both(sanitiser: str) -> Path:
    """Build the core and the probe; the folder to put on the path."""
    folder = ROOT / "build" / "sanitize" / sanitiser
    build(folder, [*INSTRUMENTED, f"-fsanitize={sanitiser}"])
    command = [compiler(), *FLAGS, *INSTRUMENTED, f"-fsanitize={sanitiser}", str(PROBE)]
    subprocess.run([*command, "-o", str(folder / "probe.so")], check=True)
    note = _NOTE_OTHER_CORES.format(folder=folder, core=str(CORE))
    (folder / "sitecustomize.py").write_text(note, encoding="utf-8")
    return folder


def runtime_library(sanitiser: str) -> str:
    """The sanitiser's runtime as the compiler knows it."""
    name = RUNTIMES[sanitiser]
    path = subprocess.run(
        [compiler(), f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not Path(path).is_absolute():
        sys.exit(f"sanitize: {compiler()} has no {name}: install the sanitiser runtimes of the compiler")
    return path


def environment(sanitiser: str, folder: Path) -> dict[str, str]:
    """The environment of the tests."""
    options = f"{OPTIONS[sanitiser]}:log_path={folder / 'report'}"
    if sanitiser == "thread":
        options += ":exitcode=0"
    return {
        **os.environ,
        "LD_PRELOAD": runtime_library(sanitiser),
        VARIABLES[sanitiser]: options,
        "LSAN_OPTIONS": "exitcode=0:max_leaks=0:report_objects=0",
        # Python's own allocator would hide what it hands out.
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PYTHONSAFEPATH": "1",  # the folder that a process starts in has the other core
        # Tests that build a core of their own build it like this one.
        "CFLAGS": " ".join([*INSTRUMENTED, f"-fsanitize={sanitiser}"]),
    }


def reports(folder: Path) -> list[str]:
    """What the sanitiser wrote that concerns the core."""
    texts = [path.read_text(errors="replace") for path in sorted(folder.glob("report.*"))]
    blocks = [block for text in texts for block in SEPARATOR.split(text)]
    return [block.strip() for block in blocks if _is_leak(block) or _is_error(block)]


def _is_leak(block: str) -> bool:
    """Memory that the core lost. Python keeps handles as integers, in which no pointer is seen: the objects
    behind them, and what only they point to, may be alive."""
    allocation = CORE_FRAME.search(block)
    return (
        block.startswith("Direct leak") and allocation is not None and not allocation[1].endswith("_create")
    )


def _is_error(block: str) -> bool:
    summary = (
        block.startswith(("SUMMARY", "Direct leak", "Indirect leak")) or "detected memory leaks" in block
    )
    return not summary and ("Sanitizer" in block or "runtime error" in block)


def check_probe(sanitiser: str, folder: Path, variables: dict[str, str]) -> None:
    """Exit unless the sanitiser reports the probe's fault."""
    library = folder / "probe.so"
    code = f"import ctypes; ctypes.CDLL({str(library)!r}).probe_{sanitiser}()"
    subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, check=False)
    written = list(folder.glob("report.*"))
    if not any(f"probe_{sanitiser}" in path.read_text(errors="replace") for path in written):
        sys.exit(f"sanitize: the {sanitiser} sanitiser does not report a fault made on purpose")
    for path in written:
        path.unlink()


def run(sanitiser: str, arguments: Sequence[str], full: bool) -> bool:
    """Build, run the tests, print the reports; True when tests passed and nothing was reported."""
    folder = build_both(sanitiser)
    variables = environment(sanitiser, folder) | (FULL if full else {})
    variables |= UNMEASURED if sanitiser in SELECTED else {}
    check_probe(sanitiser, folder, variables)
    suites = [*TESTS, *(MORE_TESTS if full else ())]
    tests = list(arguments) if any(not a.startswith("-") for a in arguments) else [*suites, *arguments]
    plugins = ["-p", "no:cacheprovider", "-p", "no:benchmark"]
    path = ["-o", f"pythonpath={folder} {ROOT} {ROOT / 'tests'}"]  # pytest's comes before PYTHONPATH
    selection = [*IGNORED, *SELECTED.get(sanitiser, ())]
    command = [sys.executable, "-P", "-m", "pytest", "-q", *plugins, *path, *selection, *tests]
    code = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
    messages = reports(folder)
    for message in messages:
        print(f"\n{'-' * 80}\n{message}")
    print(f"sanitize: {sanitiser}: pytest ended with {code}, {len(messages)} reports of the core", flush=True)
    return code == 0 and not messages


def main() -> int:
    """Run each sanitiser asked for in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="every variation, longer stress, more tests")
    parser.add_argument("sanitisers", nargs="*", metavar="address|undefined|thread", default=[])
    arguments, rest = _split(sys.argv[1:])
    options = parser.parse_args(arguments)
    chosen = options.sanitisers or list(RUNTIMES)
    for name in chosen:
        if name not in RUNTIMES:
            parser.error(f"{name!r} is not one of {', '.join(RUNTIMES)}")
    results = [run(name, rest, options.full) for name in chosen]
    return 0 if all(results) else 1


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and after ``--``."""
    if "--" not in arguments:
        return list(arguments), []
    at = list(arguments).index("--")
    return list(arguments[:at]), list(arguments[at + 1 :])


if __name__ == "__main__":
    sys.exit(main())
