"""The order in which devices run what was placed on them.

Every device has one queue, whose dispatches run in one order for all devices: the model's, to begin with.
Where branches of a model share a device, that order can keep the others waiting::

    model's order      cpu   a1 . a2 . a3 . b1 .          a: products on one NPU, b: on another,
                       npu      A1 . A2 .                 each with steps on the CPU between them:
                       npu:1                 B1           b1 comes last, and so does all of B

    list schedule      cpu   a1 b1 a2 b2 ...              of the dispatches that can start, the one with
                       npu      A1 .  A2                  the longest path to the end of the model
                       npu:1       B1 .  B2               goes first

This is list scheduling by upward rank (H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-effective and
low-complexity task scheduling for heterogeneous computing", 2002), with the devices given. The result is
taken where the simulated run gets shorter by `MIN_GAIN`, as another order can need more memory.

Which device is best for a dispatch depends on the order, too: where branches can hardly run at once, nothing
is gained by spreading them. So a model with branches is also placed in an order that interleaves them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from mansard.ir.dispatch import DispatchGraph
from mansard.placement.place import PlacementResult
from mansard.placement.problem import HOST, PlacementProblem, reordered
from mansard.placement.simulate import simulate
from mansard.placement.workload import state_users

MIN_GAIN = 0.02
"""Of the predicted latency, what another order has to save."""


MIN_HEADROOM = 0.05
"""Of the predicted latency, what unlimited devices, each dispatch on its fastest, would have to save for a
model to be placed once more with its branches interleaved."""


def interleaved(graph: DispatchGraph, result: PlacementResult) -> DispatchGraph | None:
    """A placed graph with its branches interleaved; None where another placement cannot gain from that."""
    if result.prediction.objective != "latency":
        return None
    order, unlimited = earliest_start_order(result.problem, state_users(graph))
    if order == list(range(len(order))):
        return None
    if 1e3 * unlimited > (1 - MIN_HEADROOM) * result.prediction.latency_ms:
        return None
    return replace(graph, dispatches=tuple(graph.dispatches[n] for n in order))


def earliest_start_order(
    problem: PlacementProblem, in_order: Sequence[Sequence[int]]
) -> tuple[list[int], float]:
    """The dispatches by when they would start if each had its fastest device to itself, and the seconds until
    the last would end; those of each group of ``in_order`` stay in sequence."""
    times = [
        min(row[d] for d in devices) for row, devices in zip(problem.times, problem.allowed, strict=True)
    ]
    starts: list[float] = []
    for predecessors in _predecessors(problem, in_order):
        starts.append(max((starts[p] + times[p] for p in predecessors), default=0.0))
    order = sorted(range(len(starts)), key=lambda n: (starts[n], n))
    return order, max(map(sum, zip(starts, times, strict=True)), default=0.0)


def reorder(graph: DispatchGraph, result: PlacementResult) -> tuple[DispatchGraph, PlacementResult]:
    """A placed graph with its dispatches in an order that overlaps them better, where there is one.

    The graph and the placement as they are when throughput is wanted (calls in flight fill the gaps of each
    other), or when one device has everything.
    """
    problem, labels = result.problem, result.search_result.labels
    if result.prediction.objective != "latency" or len(set(labels)) < 2:
        return graph, result
    # Readers of a state stay before the dispatch that overwrites it.
    order = list_schedule(problem, labels, state_users(graph))
    changed, relabelled = reordered(problem, order), [labels[n] for n in order]
    run = simulate(changed, relabelled)
    latency = round(run.seconds * 1e3, 6)
    if latency > (1 - MIN_GAIN) * result.prediction.latency_ms:
        return graph, result
    starts = {span.dispatch: round(span.start * 1e3, 6) for span in run.spans if span.dispatch is not None}
    prediction = replace(
        result.prediction,
        latency_ms=latency,
        cost_ms=latency,
        # The bound is that of the model's order.
        bound_ms=min(result.prediction.bound_ms, latency),
        method=f"{result.prediction.method}, then list scheduling",
        copied_bytes=run.copied_bytes,
        starts_ms=tuple(starts[n] for n in range(len(order))),
    )
    search_result = replace(
        result.search_result, labels=relabelled, cost=run.seconds, method=prediction.method
    )
    result = replace(
        result,
        decisions=tuple(result.decisions[n] for n in order),
        problem=changed,
        search_result=search_result,
        prediction=prediction,
    )
    return replace(graph, dispatches=tuple(graph.dispatches[n] for n in order)), result


def list_schedule(
    problem: PlacementProblem, labels: Sequence[int], in_order: Sequence[Sequence[int]] = ()
) -> list[int]:
    """The numbers of all dispatches in an order in which each comes behind its predecessors, and those of
    each group of ``in_order`` stay in sequence.

    Takes the dispatch that can start first, over and over; of those that can start at the same time, the one
    with the longest path to the end of the model.
    """
    predecessors = _predecessors(problem, in_order)
    rank = _upward_ranks(problem, labels, predecessors)
    pending = list(map(len, predecessors))
    ready = [n for n, count in enumerate(pending) if count == 0]
    successors: list[list[int]] = [[] for _ in labels]
    for n, numbers in enumerate(predecessors):
        for number in numbers:
            successors[number].append(n)
    arrives = [0.0] * len(labels)
    free = [0.0] * len(problem.profiles)
    order: list[int] = []
    while ready:
        first = min(ready, key=lambda n: (max(arrives[n], free[labels[n]]), -rank[n], n))
        ready.remove(first)
        order.append(first)
        device = labels[first]
        free[device] = max(arrives[first], free[device]) + problem.times[first][device]
        for n in successors[first]:
            delay = sum(problem.transfer_delay(predecessors[n][first], device, labels[n]))
            arrives[n] = max(arrives[n], free[device] + delay)
            pending[n] -= 1
            if not pending[n]:
                ready.append(n)
    return order


def _predecessors(problem: PlacementProblem, in_order: Sequence[Sequence[int]]) -> list[dict[int, int]]:
    """For every dispatch those that it waits for, with the bytes that it reads from them."""
    predecessors: list[dict[int, int]] = [{} for _ in problem.times]
    for edge in problem.edges:
        for consumer in edge.consumers:
            if HOST not in (edge.producer, consumer):
                of_consumer = predecessors[consumer]
                of_consumer[edge.producer] = of_consumer.get(edge.producer, 0) + edge.bytes
    for group in in_order:
        for earlier, later in itertools.pairwise(group):
            predecessors[later].setdefault(earlier, 0)
    return predecessors


def _upward_ranks(
    problem: PlacementProblem, labels: Sequence[int], predecessors: Sequence[dict[int, int]]
) -> list[float]:
    """Seconds from the start of every dispatch to the end of the model, if queues were always free."""
    ranks = [0.0] * len(labels)
    for n in reversed(range(len(labels))):  # consumers come behind their producers in the model
        ranks[n] += problem.times[n][labels[n]]
        for producer, size in predecessors[n].items():
            delay = sum(problem.transfer_delay(size, labels[producer], labels[n]))
            ranks[producer] = max(ranks[producer], delay + ranks[n])
    return ranks
