"""Delta debugging finds what a failure needs, and asks for nothing twice."""

from __future__ import annotations

import pytest

from mansard.reducer.delta import needed


@pytest.mark.parametrize("culprits", [{3}, {0, 19}, {4, 5, 11}, set(range(20)), {7, 8, 9, 10}])
def test_exactly_the_culprits_remain(culprits: set[int]) -> None:
    asked: list[tuple[int, ...]] = []

    def fails(parts: list[int]) -> bool:
        asked.append(tuple(parts))
        return culprits <= set(parts)

    assert needed(range(20), fails) == sorted(culprits)
    assert len(asked) == len(set(asked))
    if len(culprits) == 1:
        assert len(asked) < 12


def test_one_part_is_not_asked_for() -> None:
    assert needed(["a"], lambda _: pytest.fail("asked")) == ["a"]
