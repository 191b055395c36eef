"""Weight streams of persistent kernels on `support.kernels.ptx_machine`: every part is read once, by whoever
it is for, whatever the order in which threads run and copies end."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from support.kernels.machine_runs import MachineRun, PlacedBuffer, dispatch
from support.kernels.ptx_machine import Memory

from mansard.drivers.vulkan.shaders.abi import BodyInfo
from mansard.drivers.vulkan.shaders.persistent import THREADS, Body
from mansard.hal import BufferRef
from mansard.hal.weight_streams import StreamOperand, WeightStream

SMALL, LARGE = 32, 2048
"""Bytes of parts: a subgroup has eight slots for the former, two for the latter."""
_REGISTERS = ".reg .b32 %r<16>;\n.reg .b64 %rd<4>;\n.reg .pred %p<4>;\n"
_COUNT = """
mul.wide.u32 %rd2, {part}, 4;
add.u64 %rd2, %rd1, %rd2;
and.b32 %r8, thread, 31;
setp.eq.u32 %p2, %r8, 0;
@%p2 red.release.gpu.global.add.u32 [%rd2], {value};
"""
"""Add to the element of a part, once a subgroup."""
ADJACENT = (
    "{\n"
    + _REGISTERS
    + """
ld.shared.b64 %rd1, [words];
ld.shared.b32 %r10, [words+ROWS];
ld.shared.b32 %r11, [words+ROWS+8];
mul.lo.u32 %r1, %r10, rank;
div.u32 %r1, %r1, blocks;
add.u32 %r2, rank, 1;
mul.lo.u32 %r2, %r10, %r2;
div.u32 %r2, %r2, blocks;
mul.lo.u32 %r1, %r1, %r11;
mul.lo.u32 %r2, %r2, %r11;
shr.u32 %r9, thread, 5;
add.u32 %r1, %r1, %r9;
$L__BB0_1:
setp.ge.u32 %p1, %r1, %r2;
@%p1 bra $L__BB0_2;
stream.wait %r5;
ld.shared.b32 %r3, [%r5];
"""
    + _COUNT.format(part="%r1", value="%r3")
    + """
stream.next;
add.u32 %r1, %r1, 8;
bra $L__BB0_1;
$L__BB0_2:
bra JOIN;
}
"""
)
"""Adds the first word of each slot to the element of its part, of a block's rows. ROWS is where their number
stands in the argument table, behind the bindings and before the parts of one."""


def operands(count: int, part: int = SMALL) -> tuple[StreamOperand, ...]:
    return tuple(StreamOperand(1 + n, part, 0) for n in range(count))


def weights(stream: WeightStream, product: int) -> bytes:
    """Parts that begin with where the sum of their product's part is, plus one."""
    parts = stream.rows * stream.parts
    numbers = np.zeros((parts, stream.slot_bytes // 4), np.uint32)
    row, part = np.divmod(np.arange(parts), stream.parts)
    numbers[:, 0] = (row * stream.products + product) * stream.parts + part + 1
    return numbers.tobytes()


def check(streams: Sequence[WeightStream], seed: int, launches: int = 2) -> None:
    """Every part is read once in each launch of dispatches that read the streams one after another."""
    memory, dispatches, results = Memory(), [], list[PlacedBuffer]()
    for stream in streams:
        of_row = stream.parts * stream.products
        results.append(PlacedBuffer(memory, bytes(4 * stream.rows * of_row)))
        matrices = [PlacedBuffer(memory, weights(stream, product)) for product in range(stream.products)]
        refs = [BufferRef(buffer) for buffer in (results[-1], *matrices)]
        text = ADJACENT.replace("ROWS", str(8 * len(refs)))
        body = Body(text, THREADS, BodyInfo(1024, (0,), stream))
        dispatches.append((dispatch(refs, [stream.rows, of_row], 1), body))
    machine = MachineRun(dispatches, [False] * len(dispatches), memory, seed)
    for count in range(1, launches + 1):
        machine.launch()
        for result in results:
            sums = np.frombuffer(memory.read(result.address, result.size), np.uint32)
            np.testing.assert_array_equal(sums, count * np.arange(1, len(sums) + 1, dtype=np.uint32))


def rows(count: int, parts: int, products: int = 1, part: int = SMALL) -> WeightStream:
    return WeightStream(count, parts, operands(products, part), products)


def test_rows() -> None:
    check([rows(7, 3), rows(11, 2)], seed=3)


@pytest.mark.parametrize(("parts", "products"), [(8, 1), (4, 2), (2, 2), (1, 2)])
def test_parts_of_rows(parts: int, products: int) -> None:
    check([rows(10, parts, products)], seed=parts)


@pytest.mark.parametrize("part", [SMALL, LARGE])
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 30))]
)
def test_streams_one_after_another(seed: int, part: int) -> None:
    """Subgroups request parts of the next ones at different times."""
    rng, streams = random.Random(seed), []
    for _ in range(rng.randint(2, 6)):
        products = rng.choice((1, 1, 2))
        parts = rng.choice((1, 2, 4)) if products > 1 else rng.randint(1, 5)
        streams.append(rows(rng.randint(1, 12), parts, products, part))
    check(streams, seed)
