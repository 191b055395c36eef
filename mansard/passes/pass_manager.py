"""Runs the passes of a pipeline in order: each named, timed, verified and dumped.

Which passes a compilation consists of, and why in this order, says `mansard.passes.pipeline`.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from mansard.arguments import shown
from mansard.errors import CompileError, VerificationError
from mansard.ir.dispatch import DispatchGraph
from mansard.ir.graph import Graph
from mansard.ir.verify import verify

IR = Union[Graph, DispatchGraph]
PassFunction = Callable[[Any], IR]
"""Takes a Graph or a DispatchGraph and returns one; the same object when it changed nothing."""
Dump = Callable[[str, str], None]
"""Called with a pass's name and the IR after it as text."""


@dataclass(frozen=True)
class PassStep:
    """One pass of a pipeline.

    ``when`` tells whether this compilation runs it: a step that does not run keeps its place and its name.
    A ``required`` pass cannot be left out, as what follows depends on the form it leaves.
    """

    run: PassFunction
    when: bool = True
    required: bool = False
    name: str = ""
    """The function's own name, unless stated."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", _function_name(self.run))


@dataclass(frozen=True)
class Fixpoint:
    """Passes repeated until none changes the graph, at most ``rounds`` times."""

    passes: Sequence[PassStep | PassFunction]
    rounds: int = 6
    name: str = "fixpoint"

    def members(self) -> tuple[PassStep, ...]:
        """The repeated passes."""
        return tuple(p if isinstance(p, PassStep) else PassStep(p) for p in self.passes)


Step = Union[PassStep, Fixpoint]


def run_passes(
    graph: Graph,
    steps: Sequence[Step | PassFunction],
    dump: Dump | None = None,
    timings: MutableMapping[str, float] | None = None,
    *,
    begun: bool = False,
) -> Graph:
    """Run passes from Graph to Graph in order and return the result.

    ``dump`` is called with ``before`` and the input's text (unless passes have ``begun`` already), then with
    a pass's name and the text after it for every pass that changed something; ``timings`` collects seconds by
    pass name. Every changed graph is verified: a VerificationError names the pass that broke it.
    """
    if dump is not None and not begun:
        dump("before", str(graph))
    result = _run_steps(graph, steps, dump, timings)
    assert isinstance(result, Graph)
    return result


def run_fusion(
    graph: Graph,
    steps: Sequence[Step | PassFunction],
    dump: Dump | None = None,
    timings: MutableMapping[str, float] | None = None,
) -> DispatchGraph:
    """Run the passes that make dispatches of a Graph and work on these."""
    result = _run_steps(graph, steps, dump, timings)
    assert isinstance(result, DispatchGraph)
    return result


def _run_steps(
    ir: IR,
    steps: Sequence[Step | PassFunction],
    dump: Dump | None,
    timings: MutableMapping[str, float] | None,
) -> IR:
    for step in steps:
        if isinstance(step, Fixpoint):
            ir = _run_fixpoint(ir, step, dump, timings)
        else:
            ir = _run_pass(ir, step if isinstance(step, PassStep) else PassStep(step), dump, timings)
    return ir


def _run_fixpoint(
    ir: IR, step: Fixpoint, dump: Dump | None, timings: MutableMapping[str, float] | None
) -> IR:
    members, first = step.members(), ir
    for _ in range(step.rounds):
        before = ir
        for member in members:
            ir = _run_pass(ir, member, dump, timings)
        if ir is before:
            break
    if dump is not None and ir is not first:
        dump(step.name, str(ir))
    return ir


def _run_pass(ir: IR, step: PassStep, dump: Dump | None, timings: MutableMapping[str, float] | None) -> IR:
    if not step.when:
        return ir
    started = time.perf_counter()
    result = step.run(ir)
    if isinstance(result, Graph) and result is not ir:
        try:
            verify(result)
        except VerificationError as error:
            raise VerificationError(f"after pass {step.name}: {error}") from error
    if timings is not None:
        timings[step.name] = timings.get(step.name, 0.0) + time.perf_counter() - started
    if dump is not None and result is not ir:
        dump(step.name, str(result))
    return result


def with_unique_names(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps, the second and later ones of a name called ``name.2``, ``name.3`` and so on."""
    counts: dict[str, int] = {}
    named = []
    for step in steps:
        count = counts[step.name] = counts.get(step.name, 0) + 1
        named.append(step if count == 1 else dataclasses.replace(step, name=f"{step.name}.{count}"))
    return tuple(named)


def pass_names(steps: Sequence[Step]) -> list[str]:
    """Every name that a dump may carry: those of the steps, and of the passes inside fixpoints."""
    return list(dict.fromkeys(name for step in steps for name in _names(step)))


def select(
    steps: Sequence[Step],
    *,
    start: str | None = None,
    stop_after: str | None = None,
    skip: Sequence[str] = (),
) -> tuple[Step, ...]:
    """The part of a pipeline from step ``start`` up to and including step ``stop_after``, without passes
    named in ``skip``: a step of that name, or every pass of that function, inside fixpoints too.

    Raises CompileError for names the pipeline does not have, listing those it has, for a required pass in
    ``skip``, and for an end before the beginning.
    """
    names = [step.name for step in steps]
    first = 0 if start is None else _position(names, start)
    last = len(steps) if stop_after is None else _position(names, stop_after) + 1
    if last <= first:
        raise CompileError(f"pass {stop_after!r} stands before {start!r}: there is nothing to run")
    for name in skip:
        _check_skippable(steps, name)
    kept = (_without(step, skip) for step in steps[first:last])
    return tuple(step for step in kept if step is not None)


def _position(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise _unknown(name, names)
    return names.index(name)


def _unknown(name: str, names: Sequence[str]) -> CompileError:
    """The error for a name that no pass has; of passes that come several times (``name.2``) it says that."""
    once = dict.fromkeys(known.partition(".")[0] for known in names)
    again = next((known for known in names if "." in known), None)
    several = f"; one that comes again is {again}" if again is not None else ""
    return CompileError(f"no pass {shown(name)} in the pipeline; its passes: {', '.join(once)}{several}")


def _check_skippable(steps: Sequence[Step], name: str) -> None:
    known = pass_names(steps)
    if name not in known:
        raise _unknown(name, known)
    if any(isinstance(step, PassStep) and step.required and _is_called(step, name) for step in steps):
        raise CompileError(f"pass {name!r} cannot be left out: later passes need the form it leaves")


def _without(step: Step, skip: Sequence[str]) -> Step | None:
    if any(_is_called(step, name) for name in skip):
        return None
    if isinstance(step, Fixpoint):
        members = tuple(p for p in step.members() if p.name not in skip)
        return dataclasses.replace(step, passes=members)
    return step


def _is_called(step: Step, name: str) -> bool:
    """By its name in the pipeline, or by that without the number."""
    return name in (step.name, step.name.partition(".")[0])


def _names(step: Step) -> Iterator[str]:
    yield step.name
    if isinstance(step, Fixpoint):
        yield from (member.name for member in step.members())


def _function_name(function: PassFunction) -> str:
    if isinstance(function, functools.partial):
        return _function_name(function.func)
    return getattr(function, "__name__", type(function).__name__)
