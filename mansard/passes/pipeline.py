"""Passes in order: named, timed, dumped and verified after each."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Union

from mansard.errors import VerificationError
from mansard.ir.graph import Graph
from mansard.ir.verify import verify
from mansard.passes.canonical.copies import read_through_copies
from mansard.passes.canonical.cse import eliminate_common
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.fold_constants import fold_constants, inline_generated
from mansard.passes.canonical.gathers import affine_gathers
from mansard.passes.canonical.inline import inline_into_gathers
from mansard.passes.canonical.joins import read_through_joins
from mansard.passes.canonical.lower_attention import lower_attention
from mansard.passes.canonical.lower_views import lower_views
from mansard.passes.canonical.simplify import simplify
from mansard.passes.canonical.views import simplify_views
from mansard.passes.layout.permute import permute_producers
from mansard.passes.layout.split_loops import split_consumers

Pass = Callable[[Graph], Graph]
Dump = Callable[[str, str], None]


@dataclass(frozen=True)
class Fixpoint:
    """Passes repeated until none changes the graph, at most ``rounds`` times."""

    passes: tuple[Pass, ...]
    rounds: int = 6


Step = Union[Pass, Fixpoint]

_CLEAN: tuple[Pass, ...] = (
    simplify_views,
    simplify,
    affine_gathers,
    read_through_copies,
    read_through_joins,
    inline_generated,
    fold_constants,
    eliminate_common,
    eliminate_dead,
)

CANONICAL: tuple[Step, ...] = (
    eliminate_dead,
    simplify_views,
    lower_attention,
    lower_views,
    Fixpoint(_CLEAN),
    inline_into_gathers,
    # Producers first: a transpose written by its producer leaves the loops of its readers whole.
    permute_producers,
    split_consumers,
    Fixpoint(_CLEAN),
    permute_producers,
    Fixpoint(_CLEAN),
)
"""From an imported graph to one of Generic, Reshape, Scatter, Sort, Scan and Assert without needless
copies, as fusion wants it."""


def run_passes(
    graph: Graph,
    passes: Sequence[Step],
    dump: Dump | None = None,
    timings: MutableMapping[str, float] | None = None,
) -> Graph:
    """Run ``passes`` in order and return the result.

    ``dump`` is called with ``before`` and the input's text, then with a pass's name and the text
    after it for every pass that changed something; ``timings`` collects seconds by pass name. Every
    changed graph is verified: a VerificationError names the pass that broke it.
    """
    if dump is not None:
        dump("before", str(graph))
    for step in passes:
        if isinstance(step, Fixpoint):
            for _ in range(step.rounds):
                before = graph
                for one in step.passes:
                    graph = _run(graph, one, dump, timings)
                if graph is before:
                    break
        else:
            graph = _run(graph, step, dump, timings)
    return graph


def _run(graph: Graph, step: Pass, dump: Dump | None, timings: MutableMapping[str, float] | None) -> Graph:
    name = getattr(step, "__name__", type(step).__name__)
    started = time.perf_counter()
    result = step(graph)
    if result is not graph:
        try:
            verify(result)
        except VerificationError as error:
            raise VerificationError(f"after pass {name}: {error}") from error
    if timings is not None:
        timings[name] = timings.get(name, 0.0) + time.perf_counter() - started
    if dump is not None and result is not graph:
        dump(name, str(result))
    return result
