"""The order in which devices run what was placed on them.

Every device has one queue, whose dispatches run in one order for all devices: the model's, to begin with.
Where branches of a model share a device, that order can keep the others waiting::

    model's order      cpu   a1 . a2 . a3 . b1 .          a: products on one NPU, b: on another,
                       npu      A1 . A2 .                 each with steps on the CPU between them:
                       npu:1                 B1           b1 comes last, and so does all of B

    by longest way     cpu   a1 b1 a2 b2 ...              the dispatch with the longest way to the end
                       npu      A1 .  A2                  goes first of those that can start
                       npu:1       B1 .  B2

This is list scheduling by upward rank (H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-effective and
low-complexity task scheduling for heterogeneous computing", 2002), with the devices given. The result is
taken where the simulated run gets shorter by `GAIN`, as another order can need more memory.

Which device is best for a dispatch depends on the order, too: where branches can hardly run at once, nothing
is gained by spreading them. So a model with branches is also placed in an order that has them side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from mansard.ir.dispatch import DispatchGraph
from mansard.placement.options import PlacementOptions
from mansard.placement.partitioning import Placed
from mansard.placement.place import PlacementResult
from mansard.placement.problem import HOST, PlacementProblem, reordered, state_users
from mansard.placement.simulate import simulate

GAIN = 0.02
"""Of the predicted latency, what another order has to save."""


WORTH = 0.05
"""Of the predicted latency, what a model would have to gain with unlimited devices, each dispatch on its
fastest, to be placed once more."""


def place_ordered(
    graph: DispatchGraph,
    options: PlacementOptions,
    place: Callable[[DispatchGraph, PlacementOptions], Placed],
) -> Placed:
    """Place a graph with ``place``, in the best order that is found for its dispatches.

    A second search, where there is one, gets half the time. Raises what ``place`` raises.
    """
    first = _ordered(place(graph, options))
    prediction = first.result.prediction
    if prediction.objective != "latency" or first.splits:
        return first
    problem = first.result.problem
    order, least = side_by_side(problem, state_users(first.graph))
    if order == list(range(len(order))) or 1e3 * least > (1 - WORTH) * prediction.latency_ms:
        return first
    beside = replace(first.graph, dispatches=tuple(first.graph.dispatches[n] for n in order))
    other = _ordered(place(beside, replace(options, search_seconds=options.search_seconds / 2)))
    found = other.result.prediction
    if found.latency_ms > (1 - GAIN) * prediction.latency_ms:
        return first
    told = replace(found, method=f"{found.method}, branches side by side")
    return replace(other, result=replace(other.result, prediction=told))


def _ordered(placed: Placed) -> Placed:
    graph, result = in_better_order(placed.graph, placed.result)
    return replace(placed, graph=graph, result=result)


def side_by_side(problem: PlacementProblem, in_order: Sequence[Sequence[int]]) -> tuple[list[int], float]:
    """The dispatches by when they would start if each had its fastest device to itself, and the seconds until
    the last would end; those of each group of ``in_order`` stay behind one another."""
    times = [
        min(own[d] for d in devices) for own, devices in zip(problem.times, problem.allowed, strict=True)
    ]
    starts: list[float] = []
    for parents in _before(problem, in_order):
        starts.append(max((starts[p] + times[p] for p in parents), default=0.0))
    order = sorted(range(len(starts)), key=lambda n: (starts[n], n))
    return order, max(map(sum, zip(starts, times, strict=True)), default=0.0)


def in_better_order(graph: DispatchGraph, placed: PlacementResult) -> tuple[DispatchGraph, PlacementResult]:
    """A placed graph with its dispatches in an order that overlaps them better, if one is found.

    The graph and the placement as they are when throughput is wanted (calls in flight fill the gaps of each
    other), or when one device has everything.
    """
    problem, labels = placed.problem, placed.search_result.labels
    if placed.prediction.objective != "latency" or len(set(labels)) < 2:
        return graph, placed
    # What reads a state stays before what overwrites it.
    order = by_longest_way(problem, labels, state_users(graph))
    changed, relabelled = reordered(problem, order), [labels[n] for n in order]
    run = simulate(changed, relabelled)
    latency = round(run.seconds * 1e3, 6)
    if latency > (1 - GAIN) * placed.prediction.latency_ms:
        return graph, placed
    starts = {span.dispatch: round(span.start * 1e3, 6) for span in run.spans if span.dispatch is not None}
    prediction = replace(
        placed.prediction,
        latency_ms=latency,
        cost_ms=latency,
        # The bound is that of the model's order.
        bound_ms=min(placed.prediction.bound_ms, latency),
        method=f"{placed.prediction.method}, then the longest way first",
        copied_bytes=run.copied_bytes,
        starts_ms=tuple(starts[n] for n in range(len(order))),
    )
    search_result = replace(
        placed.search_result, labels=relabelled, cost=run.seconds, method=prediction.method
    )
    result = replace(
        placed,
        decisions=tuple(placed.decisions[n] for n in order),
        problem=changed,
        search_result=search_result,
        prediction=prediction,
    )
    return replace(graph, dispatches=tuple(graph.dispatches[n] for n in order)), result


def by_longest_way(
    problem: PlacementProblem, labels: Sequence[int], in_order: Sequence[Sequence[int]] = ()
) -> list[int]:
    """The numbers of all dispatches in an order in which each comes behind what it reads, and those of each
    group of ``in_order`` behind one another.

    Again and again the dispatch that can start first is taken; of those of a device that can start then, the
    one whose way to the end of the model is longest.
    """
    before = _before(problem, in_order)
    rank = _ways(problem, labels, before)
    left = [len(parents) for parents in before]
    ready = [n for n, count in enumerate(left) if count == 0]
    children: list[list[int]] = [[] for _ in labels]
    for n, parents in enumerate(before):
        for parent in parents:
            children[parent].append(n)
    arrives = [0.0] * len(labels)
    free = [0.0] * len(problem.profiles)
    order: list[int] = []
    while ready:
        first = min(ready, key=lambda n: (max(arrives[n], free[labels[n]]), -rank[n], n))
        ready.remove(first)
        order.append(first)
        device = labels[first]
        free[device] = max(arrives[first], free[device]) + problem.times[first][device]
        for child in children[first]:
            delay = sum(problem.transfer_delay(before[child][first], device, labels[child]))
            arrives[child] = max(arrives[child], free[device] + delay)
            left[child] -= 1
            if not left[child]:
                ready.append(child)
    return order


def _before(problem: PlacementProblem, in_order: Sequence[Sequence[int]]) -> list[dict[int, int]]:
    """For every dispatch those that it comes behind, with the bytes that it has from them."""
    found: list[dict[int, int]] = [{} for _ in problem.times]
    for edge in problem.edges:
        for consumer in edge.consumers:
            if HOST not in (edge.producer, consumer):
                found[consumer][edge.producer] = found[consumer].get(edge.producer, 0) + edge.bytes
    for group in in_order:
        for earlier, later in itertools.pairwise(group):
            found[later].setdefault(earlier, 0)
    return found


def _ways(problem: PlacementProblem, labels: Sequence[int], before: Sequence[dict[int, int]]) -> list[float]:
    """Seconds from the start of every dispatch to the end of the model, if no queue were ever busy."""
    ways = [0.0] * len(labels)
    for n in reversed(range(len(labels))):  # what reads a dispatch's result comes behind it in the model
        ways[n] += problem.times[n][labels[n]]
        for parent, size in before[n].items():
            delay = sum(problem.transfer_delay(size, labels[parent], labels[n]))
            ways[parent] = max(ways[parent], delay + ways[n])
    return ways
