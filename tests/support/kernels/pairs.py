"""Parameters of which by default not every combination is tested."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest


def pairs(
    names: str,
    values: Sequence[object],
    others: str,
    other_values: Sequence[object],
    every: int = 2,
    ids: Callable[[object], str] | None = None,
) -> pytest.MarkDecorator:
    """Parametrises over all pairs of two lists, for what does not depend on each other.

    Every second pair runs by default (or as many as ``every`` says) and every value in some pair; the rest
    are `slow`. Several names of a list stand with commas, as for `pytest.mark.parametrize`.
    """
    assert min(len(values), len(other_values)) >= every, "a value would not occur"

    def arguments(names: str, value: object) -> tuple[object, ...]:
        return tuple(value) if "," in names and isinstance(value, tuple) else (value,)

    params = [
        pytest.param(
            *arguments(names, value),
            *arguments(others, other),
            marks=[] if (n + m) % every == 0 else pytest.mark.slow,
        )
        for n, value in enumerate(values)
        for m, other in enumerate(other_values)
    ]
    return pytest.mark.parametrize(f"{names}, {others}", params, ids=ids)
