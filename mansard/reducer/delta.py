"""Delta debugging: the parts of something that a failure needs.

A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Part = TypeVar("Part")


def needed(parts: Sequence[Part], fails: Callable[[list[Part]], bool]) -> list[Part]:
    """A part of ``parts`` with which ``fails`` holds, from which no single element can be left out.

    ``fails`` holds for all of them. It is asked for pieces and their complements, of smaller and smaller
    pieces down to single elements, and never twice for the same.
    """
    known: dict[tuple[int, ...], bool] = {}

    def ask(places: list[int]) -> bool:
        key = tuple(places)
        if key not in known:
            known[key] = bool(places) and fails([parts[place] for place in places])
        return known[key]

    places, pieces = list(range(len(parts))), 2
    while len(places) > 1:
        size = -(-len(places) // pieces)
        cuts = [places[begin : begin + size] for begin in range(0, len(places), size)]
        rests = [[p for p in places if p not in set(cut)] for cut in cuts]
        smaller = next((cut for cut in cuts if ask(cut)), None)
        if smaller is not None:
            places, pieces = smaller, 2
            continue
        smaller = next((rest for rest in rests if ask(rest)), None) if len(cuts) > 2 else None
        if smaller is not None:
            places, pieces = smaller, max(2, len(cuts) - 1)
        elif size == 1:
            break
        else:
            pieces = min(len(places), 2 * len(cuts))
    return [parts[place] for place in places]
