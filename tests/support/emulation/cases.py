"""The driver tests' cases, collected instead of run.

Those tests compile graphs, call them and compare with the interpreter through four functions of
`graph_runner`. A `Collector` stands in for these: it compiles for a foreign CPU, puts the calls into a
batch, and compares when the batch has run.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mansard.api import Explanation
from mansard.compiler import CompiledModel, CompileOptions, compile_graph
from mansard.ir import Graph
from mansard.ir.interpreter.graph import interpret
from mansard.placement import PlacementOptions
from mansard.runtime.session import dispatch_counts
from support import graph_runner
from support.emulation.emulator import Arrays, Batch, CrashError

_Case = tuple[str, Callable[[], Any]]
MAX_CRASHES = 20
"""Calls left out, one after another, before a batch is given up."""
DEFECTS = ("decode_save_opc: Assertion",)
"""What the emulator says when it stops for a fault of its own; such a call shows nothing about the code.
qemu 7 does at some widening vector conversions of RISC-V, qemu 8 and later do not."""


@dataclass(frozen=True)
class _Loaded:
    model: CompiledModel
    images: Mapping[str, int]
    graph: Graph

    def explain(self) -> Explanation:
        """As `Model.explain`."""
        return Explanation(self.model.plan.decisions, dispatch_counts(self.model.plan))


@dataclass(frozen=True)
class _Result:
    """Stands for the outputs of a call that has not run yet."""

    call: int
    graph: Graph

    def __iter__(self) -> Iterator[np.ndarray]:
        raise TypeError("this test looks at the outputs itself: its cases cannot be collected")


@dataclass(frozen=True)
class _Comparison:
    case: str
    result: _Result
    expected: Arrays
    rtol: float
    atol: float


@dataclass
class Collector:
    """Collects the cases of one CPU; `failures` runs them."""

    target: str
    batch: Batch
    _case: str = ""
    _comparisons: list[_Comparison] = field(default_factory=list)
    _failures: dict[str, str] = field(default_factory=dict)

    def collect(self, module: ModuleType, names: Sequence[str], limit: int) -> None:
        """Collect the cases of a module's test functions, of each at most ``most``."""
        kept = {name: getattr(module, name) for name in sorted(_runs(module))}
        try:
            for name in kept:
                setattr(module, name, getattr(self, name))
            for name in names:
                for label, run in _spread(list(_calls(getattr(module, name), self.target)), limit):
                    self._case = f"{name}[{label}]"
                    try:
                        run()
                    except Exception as error:  # reported as the failure of this case
                        self._failures[self._case] = f"{type(error).__name__}: {error}"
        finally:
            for name, function in kept.items():
                setattr(module, name, function)

    def failures(self) -> dict[str, str]:
        """Run everything; what is wrong, by case."""
        crashed: dict[int, str] = {}
        case_of = {c.result.call: c.case for c in self._comparisons}
        while True:
            try:
                results = self.batch.run(without=crashed)
                break
            except CrashError as error:
                if error.call < 0 or len(crashed) == MAX_CRASHES:
                    raise
                crashed[error.call] = case_of.get(error.call, "")
                if not any(defect in str(error) for defect in DEFECTS):
                    self._failures.setdefault(crashed[error.call], str(error))
        for c in self._comparisons:
            if c.result.call in crashed:
                continue
            try:
                graph_runner.compare(results[c.result.call], c.expected, c.rtol, c.atol)
            except AssertionError as error:
                self._failures.setdefault(c.case, f"{error}\n{c.result.graph}")
        return self._failures

    # What the collected functions call -------------------------------------------------------------
    def check(
        self,
        graph: Graph,
        inputs: Sequence[np.ndarray],
        *_devices: str,
        rtol: float = 1e-5,
        atol: float = 1e-5,
    ) -> None:
        with self.compiled(graph) as model:
            self.compare(self.outputs(model, inputs), interpret(graph, inputs), rtol, atol)

    @contextmanager
    def compiled(self, graph: Graph, *_devices: str) -> Iterator[_Loaded]:
        placement = PlacementOptions(fallback="error")
        options = CompileOptions(targets=(self.target,), placement=placement, cache=False)
        model = compile_graph(graph, options)
        yield _Loaded(model, self.batch.load(model), graph)

    def outputs(self, model: _Loaded, inputs: Sequence[np.ndarray]) -> _Result:
        return _Result(self.batch.call(model.model, model.images, inputs), model.graph)

    def compare(self, actual: _Result, expected: Arrays, rtol: float = 1e-5, atol: float = 1e-5) -> None:
        self._comparisons.append(_Comparison(self._case, actual, expected, rtol, atol))


def functions(module: ModuleType) -> list[str]:
    """The module's tests that run graphs and need a device at most."""
    runs = _runs(module) | {name for name in ("check",) if hasattr(module, name)}
    test_names = []
    for name, function in vars(module).items():
        if not name.startswith("test_"):
            continue
        given = {n for names, _ in _parameters(function) for n in names}
        inner = function.hypothesis.inner_test if hasattr(function, "hypothesis") else function
        wanted = set(inspect.signature(function).parameters) - given
        if wanted <= {"device"} and runs & set(inner.__code__.co_names):
            test_names.append(name)
    return test_names


def _runs(module: ModuleType) -> set[str]:
    """Which functions of `graph_runner` the module uses."""
    names = ("check", "compiled", "outputs", "compare")
    return {n for n in names if getattr(module, n, None) is getattr(graph_runner, n)}


def _spread(cases: list[_Case], limit: int) -> list[_Case]:
    """At most ``most`` of the cases: the middles of equal parts, since first cases tend to be trivial."""
    if len(cases) <= limit:
        return cases
    return [cases[(2 * i + 1) * len(cases) // (2 * limit)] for i in range(limit)]


def _parameters(function: Callable[..., Any]) -> list[tuple[list[str], list[Any]]]:
    marks = [m for m in getattr(function, "pytestmark", ()) if m.name == "parametrize"]
    parameters = []
    for mark in marks:
        names = mark.args[0]
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        parameters.append((names, list(mark.args[1])))
    return parameters


def _calls(function: Callable[..., Any], device: str) -> Iterator[_Case]:
    """The function with each combination of its parameters."""
    parameters = _parameters(function)
    fixed = {"device": device} if "device" in inspect.signature(function).parameters else {}
    labels: set[str] = set()
    for values in itertools.product(*(values for _, values in parameters)):
        arguments: dict[str, Any] = {}
        for (names, _), value in zip(parameters, values, strict=True):
            row = value.values if isinstance(value, type(pytest.param())) else (value,)
            row = row[0] if len(names) > 1 and len(row) == 1 else row
            arguments.update(zip(names, row, strict=True))
        # Of cases that name devices, those that differ in the device alone are one here.
        of_a_device = arguments.pop("device", None) is not None
        label = ", ".join(str(v) for v in arguments.values())
        if of_a_device and label in labels:
            continue
        labels.add(label)
        yield label, functools.partial(function, **fixed, **arguments)
