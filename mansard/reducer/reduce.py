"""Makes a failing model small: its ops first, then its sizes, each try in a child process."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mansard.errors import MansardError
from mansard.ir.graph import Graph
from mansard.ir.graph_file import read_graph, weights_file
from mansard.ir.types import Value
from mansard.reducer.delta import needed
from mansard.reducer.failure import Failure
from mansard.reducer.graph_parts import part_of, write
from mansard.reducer.graph_sizes import smaller_graphs
from mansard.reducer.trial import inputs_file
from mansard.reducer.trials import BudgetSpentError, Trials


@dataclass(frozen=True)
class Reduced:
    """The small model: its files, the first of which is the model, how it fails, and what it was made of."""

    files: tuple[Path, ...]
    failure: Failure
    before: int
    after: int
    """Ops, nodes or calls."""
    text: str
    complete: bool
    """Whether nothing more can be left out; False where the time was over before."""


class Parts(Protocol):
    """A framework's model in parts, of which a smaller one can be made."""

    suffix: str
    parts: list[Any]

    def write(self, parts: Any, path: Path) -> bool:
        """Write a model of some of the parts; False where they make none."""

    def describe(self, parts: Any) -> str:
        """Parts as text."""


def check_model(path: Path, trials: Trials) -> Failure | None:
    """How a model's file fails, without making it smaller."""
    with tempfile.TemporaryDirectory(prefix="mansard-reduce-") as folder:
        return _first_failure(path, Path(folder) / "whole.mir", trials)


def _first_failure(path: Path, graph: Path, trials: Trials) -> Failure | None:
    if path.suffix == ".mir":
        for source in (path, weights_file(path), inputs_file(path)):
            if source.exists():
                shutil.copy(source, graph.with_suffix(source.suffix))
    elif failure := trials.imported(path, graph):
        return failure
    return trials.failure(graph)


def reduce_model(path: Path, output: Path, trials: Trials) -> Reduced | None:
    """Write the smallest model found that fails like the one of a file; None if that one does not fail.

    ``output`` is a file without suffix, which tells what the model is: ``.mir`` for what fails after the
    import, the framework's own for an import that fails. Raises MansardError for a failing import of a
    framework whose models cannot be taken apart.
    """
    with tempfile.TemporaryDirectory(prefix="mansard-reduce-") as name:
        folder = Path(name)
        graph = folder / "whole.mir"
        failure = _first_failure(path, graph, trials)
        if failure is None:
            return None
        trials.tell(f"fails in {failure}")
        if failure.stage == "import":
            return _reduce_parts(_parts(path), failure, folder, output, trials)
        return _reduce_graph(graph, failure, folder, output, trials)


def _parts(path: Path) -> Parts:
    if path.suffix == ".onnx":
        from mansard.reducer.onnx_parts import OnnxParts

        return OnnxParts(path)
    if path.suffix == ".pt2":
        from mansard.reducer.torch_parts import TorchParts

        return TorchParts(path)
    raise MansardError(
        f"the import of {path} fails, and models of its kind are taken apart only after their import; those "
        "of ONNX (.onnx) and PyTorch (.pt2) before it, too"
    )


# Before the import ----------------------------------------------------------------------------------------
def _reduce_parts(parts: Parts, failure: Failure, folder: Path, output: Path, trials: Trials) -> Reduced:
    smallest: list[Any] = parts.parts
    candidate, graph = folder / f"part{parts.suffix}", folder / "part.mir"

    def fails(some: list[Any]) -> bool:
        nonlocal smallest
        if not parts.write(some, candidate) or not failure.is_like(trials.imported(candidate, graph)):
            return False
        if len(some) < len(smallest):
            smallest = some
            trials.tell(f"{len(some)} of {len(parts.parts)} nodes after {trials.count} tries")
        return True

    complete = _while_time_lasts(lambda: needed(parts.parts, fails))
    target = output.with_suffix(parts.suffix)
    parts.write(smallest, target)
    text = parts.describe(smallest)
    return Reduced((target,), failure, len(parts.parts), len(smallest), text, complete)


def _while_time_lasts(work: Callable[[], object]) -> bool:
    try:
        work()
    except BudgetSpentError:
        return False
    return True


# After the import -----------------------------------------------------------------------------------------
def _reduce_graph(path: Path, failure: Failure, folder: Path, output: Path, trials: Trials) -> Reduced:
    whole = read_graph(path)
    values = _recorded(path, failure, folder, trials)
    reducer = _GraphReducer(whole, failure, folder / "part.mir", values, trials)
    complete = _while_time_lasts(reducer.run)
    target = output.with_suffix(".mir")
    write(reducer.smallest, target, values)
    files = (target, weights_file(target), inputs_file(target))
    kept = tuple(file for file in files if file.exists())
    return Reduced(
        kept, reducer.failure, len(whole.ops), len(reducer.smallest.ops), str(reducer.smallest), complete
    )


def _recorded(
    path: Path, failure: Failure, folder: Path, trials: Trials
) -> dict[str, npt.NDArray[np.generic]]:
    """The values between ops, where a smaller graph has to compute with the same numbers."""
    file = folder / "values.npz"
    recorded = False
    if failure.stage == "run":
        with contextlib.suppress(BudgetSpentError):
            recorded = trials.record(path, file)
    if not recorded:
        return {}
    with np.load(file) as stored:
        return dict(stored)


class _GraphReducer:
    """The smallest graph so far, and what is tried to make it smaller."""

    def __init__(
        self, whole: Graph, failure: Failure, file: Path, values: dict[str, Any], trials: Trials
    ) -> None:
        self.smallest, self.failure, self._file, self._values = whole, failure, file, values
        self._trials = trials

    def run(self) -> None:
        """Leave out ops, then outputs, then make sizes smaller, until nothing changes."""
        whole = self.smallest
        ops = needed(whole.ops, lambda some: self._accept(part_of(whole, some)))
        self._accept(part_of(whole, ops))
        self._fewer_outputs()
        changed = True
        while changed:
            changed = any(self._accept(candidate) for candidate in smaller_graphs(self.smallest))

    def _fewer_outputs(self) -> None:
        """Single outputs, where one of several is enough."""
        graph = self.smallest
        for value, name in zip(graph.outputs, graph.output_names, strict=True):
            if len(graph.outputs) > 1 and self._accept(_with_output(graph, value, name)):
                return

    def _accept(self, candidate: Graph | None) -> bool:
        """Try a graph; it is the smallest if it fails in the same way."""
        if candidate is None:
            return False
        write(candidate, self._file, self._values)
        failure = self._trials.failure(self._file)
        if failure is None or not self.failure.is_like(failure):
            return False
        if len(candidate.ops) < len(self.smallest.ops):
            self._trials.tell(f"{len(candidate.ops)} ops after {self._trials.count} tries")
        self.smallest, self.failure = candidate, failure
        return True


def _with_output(graph: Graph, value: Value, name: str) -> Graph | None:
    from dataclasses import replace

    from mansard.passes.canonical.dce import eliminate_dead

    with contextlib.suppress(MansardError):
        return eliminate_dead(replace(graph, outputs=(value,), output_names=(name,)))
    return None
