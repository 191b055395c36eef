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
from mansard.drivers.vulkan.submission.exchange_plan import ExchangePlan, plan
from mansard.drivers.vulkan.submission.run_values import ALIGNMENT
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
    ("second", "renamed"),
    [
        ([("r", 0, 256), ("w", 512, 256)], True),  # a reader that does not wait
        ([("rx", 0, 512), ("w", 512, 256)], False),  # more than the value
        ([("s", 0, 64)], False),  # a part is written
    ],
)
def test_values_that_are_not_exchanged(
    dispatch: Make, second: list[tuple[str, int, int]], renamed: bool
) -> None:
    found = planned(
        [dispatch(("wx", 0, 256)), dispatch(*second), dispatch(("w", 0, 256)), dispatch(("r", 0, 8))]
    )
    assert found.places == {} and found.size == 0
    assert found.waits == (True, not renamed, True, False)
    assert set(found.renaming.places) == ({(0, 0), (1, 0)} if renamed else set())


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


def gated(dispatch: Make) -> list[Dispatch]:
    """A layer whose larger vector is not exchanged."""
    return [
        dispatch(("rx", 0, 256), ("wt", 256, 512)),
        dispatch(("r", 256, 512), ("rx", 0, 256), ("wx", 0, 256)),
    ]


def test_values_of_one_memory_take_two_places_in_turn(dispatch: Make) -> None:
    """So no wait is left between the readers of one and what writes the next."""
    found = planned([*(part for _ in range(4) for part in gated(dispatch)), dispatch(("r", 1024, 8))])
    assert found.waits == (True, False, True, False, True, False, True, True, False)
    places = [found.renaming.places[n, 1] for n in (0, 2, 4, 6)]
    assert places == [0, 512, 0, 512] == [found.renaming.places[n, 0] for n in (1, 3, 5, 7)]
    assert found.renaming.size == 1024
    assert not set(found.renaming.places) & set(found.places)


def test_no_more_is_renamed_than_saves_waits(dispatch: Make) -> None:
    once = [
        dispatch(("wt", 0, 64)),
        dispatch(("r", 0, 64), ("wt", 64, 64)),
        dispatch(("r", 64, 64), ("w", 128, 64)),
        dispatch(("r", 512, 8)),
    ]
    assert not planned(once).renaming.places
    large = 2 << 20
    layers = [dispatch(("wt", 0, large)), dispatch(("r", 0, large))] * 2
    found = planned([*layers, dispatch(("r", 0, 8))])
    assert not found.renaming.places, "values beyond the limit"


@pytest.mark.parametrize("seed", range(60))
def test_random_runs(dispatch: Make, seed: int) -> None:
    """Every read finds what was written last, memory in the end holds what was written last to what is not
    transient, and there are waits between accesses that would conflict."""
    rng = random.Random(seed)
    dispatches = []
    for _ in range(14):
        spans = [(64 * first, 64 * rng.randint(1, 3)) for first in rng.sample(range(0, 24, 3), 3)]
        kinds = [rng.choice(("r", "rx", "rx")), rng.choice(("rx", "s", "wx")), rng.choice(("w", "wx", "wxt"))]
        dispatches.append(dispatch(*((kind, *span) for kind, span in zip(kinds, spans, strict=True))))
    found = planned(dispatches)
    emptied_at = {}
    for number, (first, end) in enumerate(found.emptied):
        emptied_at |= dict.fromkeys(range(first, end), number)
    Place = tuple[str, int]
    expected: dict[int, tuple[tuple[int, int], int]] = {}  # by byte of memory: the last write, and its byte
    contents: dict[Place, tuple[tuple[int, int], int]] = {}
    written: dict[Place, int] = {}
    read: dict[Place, list[int]] = {}
    transient: dict[int, bool] = {}

    def place(use: tuple[int, int], number: int, byte: int) -> Place:
        for name, places in (("exchanged", found.places), ("renamed", found.renaming.places)):
            if use in places:
                return name, places[use] + number
        return "memory", byte

    for number, (command, body) in enumerate(dispatches):
        of_dispatch = []
        for binding, ref in enumerate(command.bindings):
            assert ref.size is not None
            for nth, byte in enumerate(range(ref.offset, ref.offset + ref.size)):
                at = place((number, binding), nth, byte)
                of_dispatch.append((binding in body.info.writes, (number, binding), nth, byte, at, ref))
        for writes, use, _, byte, at, _ in of_dispatch:
            if writes:
                continue
            assert contents.get(at) == expected.get(byte), (use, byte)
            if at[0] == "exchanged":
                assert any(found.waits[number : emptied_at[at[1]]]), "emptied behind a wait"
            elif at in written:
                assert any(found.waits[written[at] : number]), "read behind a wait"
            read.setdefault(at, []).append(number)
        for writes, use, nth, byte, at, ref in of_dispatch:
            if not writes:
                continue
            if at[0] == "exchanged":
                assert at not in contents, "memory is used once"
            else:
                before = [n for n in [*read.pop(at, ()), written.get(at, number)] if n < number]
                assert all(any(found.waits[n:number]) for n in before), "written behind a wait"
            contents[at], expected[byte], written[at] = (use, nth), (use, nth), number
            transient[byte] = ref.transient
    for byte, value in expected.items():
        assert transient[byte] or contents.get(("memory", byte)) == value, "what is left lies in memory"
