"""Liveness: for every step of the beam search the values that are read afterwards, and their readers."""

from __future__ import annotations

import numpy as np

from mansard.placement.problem import HOST
from mansard.placement.search.path_bound import PathBound
from mansard.placement.search.steps import SearchStep, StepTable


def add_liveness(table: StepTable, paths: PathBound | None) -> None:
    """Fill in the fields of every step that concern live values; ``paths`` is there for latency."""
    problem, slot_of = table.problem, table.slot_of
    final = {number for number, _ in table.final}
    readers = {n: {*problem.edges[n].consumers} - {HOST} for n in slot_of}
    last = {n: max(numbers, default=HOST) for n, numbers in readers.items()}
    ready = _ready_dispatches(table)
    live = [number for number, _ in table.initial]
    for n, step in enumerate(table.steps):
        live = [number for number in live if number in final or last[number] > n]
        if table.costs.handoff_load.any():
            step.covered = {
                slot: [
                    slot_of[older]
                    for older in live
                    if last[older] <= last[number]
                    and all(reader <= n or reader in readers[number] for reader in readers[older])
                ]
                for number, slot in step.writes
            }
        live += [number for number, _ in step.writes]
        sets = {
            frozenset(slot_of[m] for m in problem.input_edges[later] if m in slot_of) for later in ready[n]
        }
        step.prerequisites = [sorted(s) for s in sets if not any(other < s for other in sets)]
        step.live = np.array([slot_of[number] for number in live], np.int64)
        step.edges = np.array(live, np.int64)
        step.producers = np.array([problem.edges[number].producer for number in live], np.int64)
        step.to_host = np.array([number in final for number in live], np.bool_)
        if paths is not None:
            _add_tails(step, paths, live, n)
        step.has_reader = np.isin(np.arange(len(live)), step.tail_rows)


def _ready_dispatches(table: StepTable) -> list[set[int]]:
    """For every step the later dispatches that read only what is produced by then; all others wait for one of
    those."""
    ready: list[set[int]] = [set() for _ in table.steps]
    for later, producers in enumerate(table.problem.producers):
        for n in range(max(producers, default=0), later):
            ready[n].add(later)
    return ready


def _add_tails(step: SearchStep, paths: PathBound, live: list[int], n: int) -> None:
    tails = [paths.reader_tails(number, n) for number in live]
    step.tail_rows = np.repeat(np.arange(len(live)), [len(rows) for rows in tails])
    step.tails = np.concatenate([np.zeros((0, *paths.tails.shape[1:])), *tails])
