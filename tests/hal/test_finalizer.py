"""Finalizers: once for each object, also where signals arrive."""

from __future__ import annotations

import gc

import pytest
from support.stress.tripwire import interrupted

from mansard.hal.service import Finalizer, service


class Thing:
    """Something with a finalizer."""

    def __init__(self, number: int, ended: list[int]) -> None:
        self.other: Thing | None = None
        self.finalizer = Finalizer(self, ended.append, number)


def let_go(things: list[Thing]) -> None:
    things.pop()


def let_the_collector_go(things: list[Thing]) -> None:
    things[0].other = things[0]
    things.pop()
    gc.collect()


def close(things: list[Thing]) -> None:
    things[0].finalizer.now()
    things.pop()


@pytest.fixture
def no_collector_callbacks():
    """Other packages' callbacks (hypothesis times collections) would be interrupted too, where nothing can
    be raised."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


@pytest.mark.usefixtures("no_collector_callbacks")
@pytest.mark.parametrize("end", [let_go, let_the_collector_go, close])
def test_what_has_a_finalizer_is_finalized_once_wherever_a_signal_arrives(end) -> None:
    ended: list[int] = []
    made = 0
    for more in (0, 1):
        at, inside = 0, True
        while inside:
            things = [Thing(made, ended)]
            inside = interrupted(lambda: end(things), at, more)  # noqa: B023
            at, made = at + 1, made + 1
    things.clear()
    gc.collect()
    service().run(gc.get_count)  # what it was told before is done
    assert sorted(ended) == list(range(made))
    assert made > 6


def test_a_finalizer_runs_when_asked_and_says_so() -> None:
    ended: list[int] = []
    thing = Thing(7, ended)
    assert thing.finalizer.alive
    thing.finalizer.now()
    thing.finalizer.now()
    assert ended == [7]
    assert not thing.finalizer.alive
