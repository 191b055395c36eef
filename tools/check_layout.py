"""Checks the layout of the repository: sizes of files and folders, and import cycles between folders.

    python tools/check_layout.py

- a source file has at most 500 lines (generated ones aside), the median of the package at most 150;
- a folder has at most 25 files side by side;
- no import cycle joins files of different folders: a folder is then readable on its own. Imports inside
  functions and under TYPE_CHECKING count.

Prints what breaks a rule; the exit code is 1 then.
"""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "mansard"
MAX_LINES, MAX_MEDIAN, MAX_FILES = 500, 150, 25
SOURCES = (".py", ".c", ".h", ".sh")
GENERATED = frozenset({"mansard/drivers/vulkan/vk.py"})
DATA = ("benchmarks/results/",)
"""Folders of data, whose number of files is nobody's reading."""


def tracked() -> list[PurePosixPath]:
    """Every file that git tracks and that is there."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    paths = [PurePosixPath(name) for name in names.decode().split("\0") if name]
    return [path for path in paths if (ROOT / path).is_file()]


def lines_of(path: PurePosixPath) -> int:
    """Lines of a file."""
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def sizes(paths: list[PurePosixPath]) -> Iterator[str]:
    """Files that are too long, and a median that is too large."""
    sources = [p for p in paths if p.suffix in SOURCES and str(p) not in GENERATED]
    for path in sources:
        if (count := lines_of(path)) > MAX_LINES:
            yield f"{path}: {count} lines, at most {MAX_LINES}"
    lengths = [lines_of(p) for p in sources if p.parts[0] == PACKAGE and p.suffix == ".py"]
    if (median := statistics.median(lengths)) > MAX_MEDIAN:
        yield f"{PACKAGE}: the median file has {median:.0f} lines, at most {MAX_MEDIAN}"


def folders(paths: list[PurePosixPath]) -> Iterator[str]:
    """Folders with too many files."""
    counts = Counter(p.parent for p in paths if not str(p).startswith(DATA))
    for folder, count in sorted(counts.items()):
        if count > MAX_FILES:
            yield f"{folder}/: {count} files side by side, at most {MAX_FILES}"


def module_of(path: PurePosixPath) -> str:
    """The dotted name of a module."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(paths: list[PurePosixPath]) -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports, wherever the statement stands."""
    modules = {module_of(p): p for p in paths if p.parts[0] == PACKAGE and p.suffix == ".py"}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        targets: set[str] = set()
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                targets |= inner & modules.keys()
                if any(f"{node.module}.{alias.name}" not in modules for alias in node.names):
                    targets.add(node.module)
        graph[name] = (targets & modules.keys()) - {name}
    # The package itself only names its public parts, lazily.
    graph.pop(PACKAGE, None)
    return {name: targets - {PACKAGE} for name, targets in graph.items()}


def components(graph: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Strongly connected components of more than one module (R. E. Tarjan, 1972), without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = set()
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.add(member)
                        if member == node:
                            break
                    if len(component) > 1:
                        yield component


def cycles(paths: list[PurePosixPath]) -> Iterator[str]:
    """Import cycles that join several folders."""
    packages = {module_of(p) for p in paths if p.name == "__init__.py"}
    for component in components(imports(paths)):
        homes = {name if name in packages else name.rpartition(".")[0] for name in component}
        if len(homes) > 1:
            yield f"import cycle between folders: {', '.join(sorted(component))}"


def main() -> int:
    """Print every broken rule; returns an exit code."""
    paths = tracked()
    broken = [*sizes(paths), *folders(paths), *cycles(paths)]
    print("\n".join(broken) or "layout: sizes and imports keep to the rules")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
