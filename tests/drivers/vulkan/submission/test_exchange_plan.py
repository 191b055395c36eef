"""Which values dispatches of a persistent kernel exchange, and which barriers are left."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import pytest
from support import vulkan_support

from mansard.drivers.vulkan.memory.buffer import VulkanBuffer
from mansard.drivers.vulkan.shaders.abi import BodyInfo
from mansard.drivers.vulkan.shaders.persistent import Body
from mansard.drivers.vulkan.submission.exchange_plan import ALIGNMENT, ExchangePlan, plan
from mansard.hal import BindingSlot, BufferRef, DispatchCommand, Executable, MemoryKind
from mansard.hal.exchanges import Exchange

pytestmark = pytest.mark.vulkan
Dispatch = tuple[DispatchCommand, Body]
Make = Callable[..., Dispatch]
READS, WRITES, EXCHANGES, SCATTERS = "r", "w", "x", "s"


@pytest.fixture
def memory() -> Iterator[VulkanBuffer]:
    for device in vulkan_support.device_of_a_test():
        buffer = device.allocate(1 << 12, MemoryKind.DEVICE)
        assert isinstance(buffer, VulkanBuffer)
        yield buffer


@pytest.fixture
def dispatch(memory: VulkanBuffer) -> Make:
    """A dispatch of accesses: what it does ("r", "w"; "rx" and "wx" where the value may be exchanged, "s"
    where a part is written; "t" besides where the memory is transient), the first byte and the bytes."""

    def make(*accesses: tuple[str, int, int]) -> Dispatch:
        refs = tuple(BufferRef(memory, first, size, "t" in kind) for kind, first, size in accesses)
        kinds = [kind for kind, _, _ in accesses]

        def those(*marks: str) -> frozenset[int]:
            return frozenset(n for n, kind in enumerate(kinds) if any(mark in kind for mark in marks))

        exchange = Exchange(those(EXCHANGES), those(WRITES))
        info = BodyInfo(0, tuple(sorted(those(WRITES, SCATTERS))), exchange=exchange)
        return DispatchCommand(cast(Executable, None), "k", refs, (), (1, 1, 1)), Body("", 32, info)

    return make


def planned(dispatches: Sequence[Dispatch]) -> ExchangePlan:
    """The plan of dispatches with a barrier behind each."""
    return plan(dispatches, [True] * len(dispatches))


def layer(dispatch: Make) -> list[Dispatch]:
    """Two products and the vectors between them."""
    return [
        dispatch(("rx", 0, 256), ("wx", 256, 512)),
        dispatch(("rx", 256, 512), ("rx", 0, 256), ("wx", 0, 256)),
    ]


def test_layers_pass_on_vectors_without_waits(dispatch: Make) -> None:
    """But for the last vectors, which memory must have."""
    found = planned([part for _ in range(4) for part in layer(dispatch)])
    assert found.waits == (False, False, False, False, True, True, True, False)
    written = {(n, 2 if n % 2 else 1) for n in range(5)}
    read = {(1, 0), *((n, b) for n in (2, 4) for b in (0,)), *((n, b) for n in (3, 5) for b in (0, 1))}
    assert set(found.places) == written | read


def test_every_value_has_memory_of_its_own(dispatch: Make) -> None:
    found = planned([part for _ in range(3) for part in layer(dispatch)])
    written = sorted(found.places[use] for use in found.places if use in {(0, 1), (1, 2), (2, 1), (3, 2)})
    assert len(set(written)) == len(written) and all(place % ALIGNMENT == 0 for place in written)
    assert found.places[0, 1] == found.places[1, 0]
    assert found.polls(1) == 0b101, "what the first dispatch reads is in ordinary memory"
    emptied = [(first, end, number) for number, (first, end) in enumerate(found.emptied) if end > first]
    for (number, binding), place in found.places.items():
        (behind,) = (n for first, end, n in emptied if first <= place < end)
        assert any(found.waits[number:behind]), (number, binding)


@pytest.mark.parametrize(
    "second",
    [
        [("r", 0, 256), ("w", 512, 256)],  # a reader that does not wait
        [("rx", 0, 512), ("w", 512, 256)],  # more than the value
        [("s", 0, 64)],  # a part is written
    ],
)
def test_values_that_are_not_exchanged(dispatch: Make, second: list[tuple[str, int, int]]) -> None:
    found = planned(
        [dispatch(("wx", 0, 256)), dispatch(*second), dispatch(("w", 0, 256)), dispatch(("r", 0, 8))]
    )
    assert found.places == {} and found.size == 0
    assert found.waits == (True, True, True, False)


def test_a_value_that_is_left_in_memory_is_not_exchanged(dispatch: Make) -> None:
    reads = dispatch(("rx", 0, 256), ("w", 512, 64))
    for last in (("w", 0, 128), ("w", 256, 256)):
        found = planned([dispatch(("wx", 0, 256)), reads, dispatch(last), dispatch(("r", 1024, 8))])
        assert not found.places
    found = planned(
        [dispatch(("wx", 0, 256)), reads, dispatch(("w", 0, 128)), dispatch(("w", 128, 128)), reads]
    )
    assert set(found.places) == {(0, 0), (1, 0)}
    assert planned([dispatch(("wx", 0, 256)), reads, dispatch(("w", 0, 256))]).places == {}, (
        "emptied by nobody"
    )


def test_a_value_that_nothing_looks_for_in_memory(dispatch: Make) -> None:
    reads, last = dispatch(("rx", 0, 256), ("w", 512, 64)), dispatch(("r", 1024, 8))
    run = [dispatch(("wxt", 0, 256)), reads, dispatch(("w", 0, 128)), last]
    waits = [True] * len(run)
    assert set(plan(run, waits).places) == {(0, 0), (1, 0)}
    address = run[0][0].bindings[0].buffer
    assert isinstance(address, VulkanBuffer)
    start = address.address
    assert plan(run, waits, [(start + 255, start + 300)]).places == {}, "a later command reads it"
    assert set(plan(run, waits, [(start + 256, start + 300)]).places) == {(0, 0), (1, 0)}
    assert plan([*run[:-1], reads], waits).places == {}, "the last dispatch reads it, and nobody empties it"
    part = dispatch(("s", 0, 64))
    assert plan([run[0], part, reads, last], waits).places == {}


def test_a_part_of_a_value(dispatch: Make) -> None:
    """Such as the keys of a projection of queries, keys and values."""
    first = dispatch(("wx", 0, 512))
    parts = dispatch(("rx", 128, 256), ("w", 1024, 256))
    found = planned([first, parts, dispatch(("w", 0, 512)), dispatch(("r", 1024, 8))])
    assert found.places == {(0, 0): 0, (1, 0): 128}
    assert found.waits == (False, False, True, False)
    assert found.emptied == ((0, 0), (0, 0), (0, 0), (0, 512))


def test_other_conflicts_keep_their_barriers(dispatch: Make) -> None:
    before = dispatch(("w", 0, 64), ("r", 64, 64))
    for access, waits in (
        (("r", 0, 8), True),
        (("w", 64, 8), True),
        (("w", 32, 8), True),
        (("r", 64, 8), False),
    ):
        assert planned([before, dispatch(access), dispatch(("r", 512, 8))]).waits == (waits, False, False)
    late = planned([before, dispatch(("r", 512, 8)), dispatch(("r", 0, 8))])
    assert late.waits == (False, True, False)


def test_dispatches_without_a_barrier_are_independent(dispatch: Make) -> None:
    both = [dispatch(("w", 0, 64)), dispatch(("w", 0, 64)), dispatch(("r", 0, 64))]
    assert plan(both, [False, True, False]).waits == (False, True, False)


def test_buffers_that_are_not_known_yet(dispatch: Make) -> None:
    command, body = dispatch(("wx", 0, 64), ("r", 0, 8))
    refs = (BufferRef(BindingSlot(0)), *command.bindings[1:])
    unknown = DispatchCommand(command.executable, "k", refs, (), (1, 1, 1))
    found = plan([(unknown, body), (command, body), (command, body)], [True, False, True])
    assert found == ExchangePlan((True, False, True), {}, ((0, 0),) * 3, 0)


@pytest.mark.parametrize("seed", range(40))
def test_random_runs(dispatch: Make, seed: int) -> None:
    """Every read finds what was written last, and memory what was written last in the end."""
    rng = random.Random(seed)
    dispatches = []
    for _ in range(14):
        spans = [(64 * first, 64 * rng.randint(1, 3)) for first in rng.sample(range(0, 24, 3), 3)]
        kinds = [rng.choice(("r", "rx", "rx")), rng.choice(("rx", "s", "wx")), rng.choice(("w", "wx", "wx"))]
        dispatches.append(dispatch(*((kind, *span) for kind, span in zip(kinds, spans, strict=True))))
    found = planned(dispatches)
    last: dict[int, tuple[int, int]] = {}  # the writer of a byte
    emptied_at = {}
    for number, (first, end) in enumerate(found.emptied):
        emptied_at |= dict.fromkeys(range(first, end), number)
    owners: dict[int, tuple[int, int]] = {}
    for number, (command, body) in enumerate(dispatches):
        writes: list[tuple[tuple[int, int], range]] = []
        for binding, ref in enumerate(command.bindings):
            assert ref.size is not None
            use, span = (number, binding), range(ref.offset, ref.offset + ref.size)
            place = found.places.get(use)
            if binding in body.info.writes:
                writes.append((use, span))
                continue
            for byte in span:
                writer = last.get(byte)
                if place is not None:
                    assert writer is not None and found.places[writer] is not None
                    start = dispatches[writer[0]][0].bindings[writer[1]].offset
                    assert place + byte - span.start == found.places[writer] + byte - start
                    where = place + byte - span.start
                    assert any(found.waits[number : emptied_at[where]]), "emptied behind a wait"
                elif writer is not None:
                    assert writer not in found.places and any(found.waits[writer[0] : number])
        for use, span in writes:
            for byte in span:
                before = last.get(byte)
                if use not in found.places and before is not None and before not in found.places:
                    assert any(found.waits[before[0] : number])
                last[byte] = use
            if use in found.places:
                for where in range(found.places[use], found.places[use] + len(span)):
                    assert owners.setdefault(where, use) == use, "memory is used once"
    assert not set(last.values()) & set(found.places), "what is left lies in ordinary memory"
