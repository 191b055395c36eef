"""Runs of dispatches on `support.kernels.ptx_machine`: whatever the order of threads, all of them read what
was written before, though values are exchanged and renamed and few waits are left."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from support.kernels.machine_runs import MachineRun, PlacedBuffer, dispatch
from support.kernels.ptx_machine import Memory

from mansard.drivers.vulkan.shaders.abi import BodyInfo
from mansard.drivers.vulkan.shaders.persistent import Body
from mansard.drivers.vulkan.submission.persistent_runs import PersistentRun
from mansard.hal import BufferRef, DispatchCommand
from mansard.hal.exchanges import Exchange

WORKGROUP = 64
ELEMENTS = 512
"""Of the memory, u32; the second half is transient."""
ADD = f"""{{
.reg .b32 %r<10>;
.reg .b64 %rd<8>;
.reg .pred %p<3>;
ld.shared.b64 %rd1, [words];
ld.shared.b64 %rd2, [words+8];
ld.shared.b64 %rd3, [words+16];
ld.shared.b32 %r1, [words+24];
mov.u32 %r2, first;
and.b32 %r8, polls, 1;
and.b32 %r9, polls, 2;
$L__BB0_1:
setp.ge.u32 %p1, %r2, groups;
@%p1 bra $L__BB0_6;
mad.lo.u32 %r3, %r2, {WORKGROUP}, thread;
setp.ge.u32 %p1, %r3, %r1;
@%p1 bra $L__BB0_5;
mul.wide.u32 %rd4, %r3, 4;
add.u64 %rd5, %rd1, %rd4;
add.u64 %rd6, %rd2, %rd4;
add.u64 %rd7, %rd3, %rd4;
$L__BB0_2:
ld.relaxed.gpu.global.b32 %r4, [%rd5];
setp.eq.u32 %p1, %r8, 0;
@%p1 bra $L__BB0_3;
setp.eq.u32 %p1, %r4, 4294967295;
@%p1 bra $L__BB0_2;
$L__BB0_3:
ld.relaxed.gpu.global.b32 %r5, [%rd6];
setp.eq.u32 %p1, %r9, 0;
@%p1 bra $L__BB0_4;
setp.eq.u32 %p1, %r5, 4294967295;
@%p1 bra $L__BB0_3;
$L__BB0_4:
add.u32 %r4, %r4, %r5;
add.u32 %r4, %r4, 1;
and.b32 %r4, %r4, 65535;
st.relaxed.gpu.global.b32 [%rd7], %r4;
$L__BB0_5:
add.u32 %r2, %r2, stride;
bra $L__BB0_1;
$L__BB0_6:
bra JOIN;
}}
"""
"""Sums of two operands and 1, as 16 bits; the words are the three buffers and the elements."""


@dataclass(frozen=True)
class Sum:
    """A dispatch: the first elements of its operands and its result, and which bindings may be exchanged."""

    left: int
    right: int
    result: int
    count: int
    exchanged: frozenset[int]

    def run(self, memory: np.ndarray) -> None:
        """What it does."""
        left, right = (memory[first : first + self.count].copy() for first in (self.left, self.right))
        memory[self.result : self.result + self.count] = left + right + 1 & 0xFFFF

    def parts(self, buffer: PlacedBuffer) -> tuple[DispatchCommand, Body]:
        """The command and its body."""
        firsts = (self.left, self.right, self.result)
        refs = [BufferRef(buffer, 4 * n, 4 * self.count, n >= ELEMENTS // 2) for n in firsts]
        info = BodyInfo(0, (2,), exchange=Exchange(self.exchanged, frozenset({2})))
        command = dispatch(refs, [self.count], -(-self.count // WORKGROUP))
        return command, Body(ADD, WORKGROUP, info)


def check(sums: Sequence[Sum], seed: int, launches: int = 2) -> PersistentRun:
    """Memory that is not transient is as if the sums had run one by one, after each launch."""
    memory, expected = Memory(), np.arange(ELEMENTS, dtype=np.uint32)
    buffer = PlacedBuffer(memory, expected.tobytes())
    machine = MachineRun([one.parts(buffer) for one in sums], [True] * len(sums), memory, seed)
    for _ in range(launches):
        machine.launch()
        for one in sums:
            one.run(expected)
        held = np.frombuffer(memory.read(buffer.address, 4 * ELEMENTS), np.uint32)
        np.testing.assert_array_equal(held[: ELEMENTS // 2], expected[: ELEMENTS // 2])
    return machine.run


HALF = ELEMENTS // 2
ALL, NONE = frozenset(range(3)), frozenset[int]()


def test_vectors_are_passed_on_without_waits() -> None:
    chain = [Sum(0, 64, HALF, 64, ALL)]
    chain += [Sum(HALF + 64 * (n % 2), 64, HALF + 64 * ((n + 1) % 2), 64, ALL) for n in range(8)]
    run = check([*chain, Sum(HALF, 0, 128, 64, ALL), Sum(64, 64, 192, 8, ALL)], seed=1)
    assert len(run.exchanges.places) > 10
    assert sum(run.exchanges.waits) < 4


def test_vectors_of_one_memory_in_turn() -> None:
    layers = [
        one
        for n in range(4)
        for one in (Sum(16 * n, 0, HALF, 96, NONE), Sum(HALF, HALF + 64, 160 + 16 * n, 16, NONE))
    ]
    for seed in range(5):
        run = check([*layers, Sum(0, 0, 128, 8, NONE)], seed)
    assert len(set(run.exchanges.renaming.places.values())) > 2
    assert 0 < sum(run.exchanges.waits) < len(layers)


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 80))]
)
def test_random_runs(seed: int) -> None:
    """Of dispatches that read what has been written, or what is not transient."""
    rng, sums = random.Random(seed), list[Sum]()
    written: set[int] = set(range(HALF))
    while len(sums) < 12:
        count = rng.choice((16, 64, 96))
        first = [16 * rng.randrange((ELEMENTS - count) // 16 + 1) for _ in range(3)]
        read = {n for f in first[:2] for n in range(f, f + count)}
        result = set(range(first[2], first[2] + count))
        aliased = any(f != first[2] and abs(f - first[2]) < count for f in first[:2])
        crosses = any(f < HALF < f + count for f in first)
        if not read <= written or aliased or crosses:
            continue
        exchanged = frozenset(n for n in range(3) if rng.random() < 0.7)
        sums.append(Sum(first[0], first[1], first[2], count, exchanged))
        written |= result
    check(sums, seed)


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 40))]
)
def test_random_layers(seed: int) -> None:
    """Of values in a few ranges of transient memory, most of which are too large to be exchanged."""
    rng, sums = random.Random(seed), list[Sum]()
    ranges = [HALF, HALF + 96, HALF + 192 - 16]
    for n in range(5):
        first, second = rng.sample(ranges[:2], 2)
        exchanged = ALL if rng.random() < 0.3 else NONE
        sums.append(Sum(16 * n, 32, first, 64, exchanged))
        sums.append(Sum(first, 16 * n, second, 64, exchanged))
        sums.append(Sum(second, first, 128 + 16 * n, 32, exchanged if rng.random() < 0.5 else NONE))
    run = check([*sums, Sum(0, 0, 240, 8, NONE)], seed)
    assert run.exchanges.renaming.places or run.exchanges.places
