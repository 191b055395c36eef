"""Arithmetic on sets of time spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[int, int]
"""Start and end, in nanoseconds."""


def merge(spans: Iterable[Span]) -> list[Span]:
    """The union of spans as disjoint spans, in order."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def total_length(spans: Iterable[Span]) -> int:
    """The length of the union of spans."""
    return sum(end - start for start, end in merge(spans))


def intersection(groups: Sequence[Sequence[Span]]) -> list[Span]:
    """The spans that every group covers, in order."""
    edges = sorted(edge for group in groups for a, b in merge(group) for edge in ((a, 1), (b, -1)))
    common: list[Span] = []
    depth = 0
    for index, (at, step) in enumerate(edges):
        depth += step
        if step == 1 and depth == len(groups) and edges[index + 1][0] > at:
            common.append((at, edges[index + 1][0]))
    return common
