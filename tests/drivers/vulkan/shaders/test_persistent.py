"""The text of persistent kernels, and their records. No driver here compiles it; kernels that ran are
recorded under benchmarks/results."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from mansard.drivers.vulkan.shaders import weight_streams
from mansard.drivers.vulkan.shaders.abi import BodyInfo
from mansard.drivers.vulkan.shaders.persistent import (
    MAX_SHARED,
    RECORD,
    THREADS,
    Body,
    Record,
    StreamRecord,
    fits,
    memory_beside,
    module_text,
    slots_of,
)
from mansard.drivers.vulkan.shaders.weight_streams import Slots
from mansard.hal.weight_streams import StreamOperand, WeightStream

STREAM = WeightStream(4096, 2, (StreamOperand(1, 1024, 0), StreamOperand(2, 512, 1024)))
PLAIN = Body("{\n$L__BB0_1:\nbra $L__BB0_1;\nbra JOIN;\n}\n", 64, BodyInfo(2048))
STREAMED = Body(
    "{\n.reg .b32 %r1;\n$L__BB0_1:\nstream.wait %r1;\nstream.next;\nbra $L__BB0_1;\nbra JOIN;\n}\n",
    256,
    BodyInfo(8192, (3,), STREAM),
)
DRIVER_LIMIT = 48 << 10


def scopes(text: str) -> list[tuple[set[str], set[str]]]:
    """For each pair of braces around statements, inner before outer, the labels that it defines, and those
    that it branches to."""
    inner = re.compile(r"\{[^{}]*\}", re.DOTALL)
    text = re.sub(r"\{[^{};\n]*\}", "", text)  # vectors of registers
    found = []
    while (scope := inner.search(text)) is not None:
        body = scope[0]
        labels = re.findall(r"^\s*([A-Z$][\w$]*):", body, re.MULTILINE)
        assert max(Counter(labels).values(), default=0) <= 1, "a label is defined once in a scope"
        used = set(re.findall(r"\bbra(?:\.uni)?\s+([\w$]+);", body))
        found.append((set(labels), used))
        free = "".join(f"bra {label};\n" for label in used - set(labels))
        text = text[: scope.start()] + free + text[scope.end() :]
    return found


@pytest.mark.parametrize("bodies", [[PLAIN], [STREAMED], [PLAIN, STREAMED, PLAIN]])
def test_labels_and_memory(bodies: list[Body]) -> None:
    text = module_text(bodies)
    assert text.count("{") == text.count("}")
    labels, used = scopes(text)[-1]
    assert used <= labels
    assert {f"BODY{number}" for number in range(len(bodies))} <= labels
    assert "stream." not in text
    assert not re.search(r"\{[a-z_]+\}", text), "nothing is left to be filled in"
    shared = [int(size) for size in re.findall(r"\.shared[^;]*\[(\d+)\];", text)]
    assert sum(shared) <= DRIVER_LIMIT
    has_stream = any(body.stream for body in bodies)
    slots = slots_of(bodies)
    assert (slots is not None) == has_stream
    assert text.count("cp.async.bulk.shared") == (slots.count + 1 if slots is not None else 0)
    assert text.count("mbarrier.try_wait") == bodies.count(STREAMED)


def test_registers_are_declared() -> None:
    text = module_text([PLAIN, STREAMED])
    declared = {
        name.strip() for line in re.findall(r"\.reg \.\w+ ([^;]+);", text) for name in line.split(",")
    }
    text = re.sub(r"\.reg[^;]+;|\.shared \.align[^;]+;|[\w$]+:|//.*", "", text[text.index(".minnctapersm") :])
    operands = {
        word
        for statement in re.split(r"[;{}]", text)
        for word in re.findall(r"(?<![.\w%$])[a-z_]\w*", re.sub(r"^\s*(@!?\w+\s+)?[\w.:]+", "", statement))
    }
    memories = {"record", "all_memory", "all_slots", "all_arrivals", "all_records", "table", "_"}
    assert operands - declared - memories == set()


def test_small_workgroups_share_a_block() -> None:
    assert PLAIN.together(MAX_SHARED) == THREADS // 64
    assert PLAIN.together(5000) == 2
    assert PLAIN.together(1000) == 0
    assert Body("", 128, BodyInfo(0)).together(0) == 2


def streaming(shared: int, slot: int) -> Body:
    return Body("", 256, BodyInfo(shared, (), WeightStream(8, 1, (StreamOperand(1, slot, 0),))))


def test_slots_fill_the_memory_beside_bodies() -> None:
    assert slots_of([PLAIN]) is None
    assert memory_beside(None) == MAX_SHARED
    assert slots_of([streaming(2048, 2048)]) == Slots(2, 2048)
    assert slots_of([streaming(2048, 1152)]) == Slots(4, 1152)
    assert slots_of([streaming(2048, 1152), Body("", 128, BodyInfo(9472))]) == Slots(3, 1152)
    assert slots_of([streaming(2048, 500)]) == Slots(8, 512)
    for slots in (Slots(2, 2048), Slots(8, 512)):
        assert slots.memory + memory_beside(slots) == MAX_SHARED


def test_streams_that_do_not_fit_together() -> None:
    small, wide, large = streaming(2048, 512), streaming(2048, 2048), streaming(22000, 1152)
    slots = slots_of([small, wide, large])
    assert slots == Slots(2, 2048)
    assert [fits(body, slots) for body in (small, wide, large)] == [True, True, False]
    slots = slots_of([small, large])
    assert slots == Slots(2, 1152)
    assert [fits(body, slots) for body in (small, wide, large)] == [True, False, True]
    assert not fits(small, None)
    assert fits(PLAIN, None)


def test_records() -> None:
    words = Record(3, 264, (1 << 40, 5), waits=True).words()
    assert words == [3 | 264 << 32, 1, 0, 0, 1 << 40, 5, *[0] * (RECORD // 8 - 6)]
    words = Record(3, 264, (7,), waits=False, polls=5, emptied=(1 << 41, 4096)).words()
    assert words[:5] == [3 | 264 << 32, 5 << 32, 1 << 41, 256, 7]
    words = StreamRecord(STREAM, (1 << 41, 1 << 42)).words()
    first, second = 1024 | 8 << 48, 512 | (1024 | 8 << 16) << 32
    assert words[:6] == [4096 | 2 << 32, 1536, 1 << 41, first, 1 << 42, second]
    assert len(words) == weight_streams.RECORD // 8
    assert not any(words[6:]), "lanes without an operand copy nothing"


def test_records_of_products_that_take_turns() -> None:
    """A subgroup's next part of a product is as many parts of it away as subgroups read that product."""
    operands = (StreamOperand(1, 1024, 0), StreamOperand(2, 1024, 0))
    words = StreamRecord(WeightStream(4096, 2, operands, products=2), (1 << 41, 1 << 42)).words()
    parts, counts = 4, 1 | 2 << weight_streams.PARTS
    assert words[:2] == [4096 | parts << 32, 1024 | counts << 32]
    places = [4 << weight_streams.EVERY | product << weight_streams.PRODUCT for product in range(2)]
    assert words[2:6] == [1 << 41, 1024 | places[0] << 32, 1 << 42, 1024 | places[1] << 32]
