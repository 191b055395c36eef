"""RISC-V relocations, against encodings from the unprivileged ISA specification."""

import struct

import pytest

from mansard.codegen.llvm.riscv import Relocation, relocate
from mansard.errors import CodegenError

AUIPC_A0, ADDI_A0, FLW, FSW, JALR = 0x00000517, 0x00050513, 0x00052507, 0x00A52027, 0x000080E7
BEQ, JAL, C_J, C_BEQZ = 0x00B50063, 0x0000006F, 0xA001, 0xC101


def patched(size, words, *relocations):
    blob = bytearray(size)
    for place, word in words.items():
        struct.pack_into("<I" if word > 0xFFFF or word & 3 == 3 else "<H", blob, place, word)
    relocate(blob, [Relocation(*r) for r in relocations])
    return blob


def word(blob, place, code="<I"):
    return struct.unpack_from(code, blob, place)[0]


@pytest.mark.parametrize(
    ("target", "high", "low"),
    [
        (0x1004, 0x00001517, 0x00450513),  # +0x1004: auipc 1, addi 4
        (0x1800, 0x00002517, 0x80050513),  # +0x1800: auipc 2, addi -0x800
        (0x7FC, 0x00000517, 0x7FC50513),
    ],
)
def test_addresses_come_in_two_parts(target, high, low):
    blob = patched(0x2000, {0: AUIPC_A0, 4: ADDI_A0}, (0, 23, target), (4, 24, 0))
    assert (word(blob, 0), word(blob, 4)) == (high, low)


def test_the_low_part_finds_the_high_part_wherever_it_stands():
    words = {0x100: AUIPC_A0, 0x200: FSW, 0x204: FLW}
    blob = patched(0x3000, words, (0x200, 25, 0x100), (0x204, 24, 0x100), (0x100, 23, 0x923))
    # The distance is 0x823: 0x1000 - 0x7dd.
    assert word(blob, 0x100) == 0x00001517
    assert word(blob, 0x200) == 0x82A521A7  # fsw fa0, -0x7dd(a0)
    assert word(blob, 0x204) == 0x82352507  # flw fa0, -0x7dd(a0)
    with pytest.raises(CodegenError, match="no high part at 0x104"):
        patched(0x3000, words, (0x200, 25, 0x104))


@pytest.mark.parametrize(
    ("kind", "code", "distance", "expected"),
    [
        (16, BEQ, -4, 0xFEB50EE3),  # beq a0, a1, -4
        (16, BEQ, 0x800, 0x00B500E3),
        (17, JAL, -2, 0xFFFFF06F),
        (17, JAL, 0x12344, 0x3441206F),
        (45, C_J, -2, 0xBFFD),
        (45, C_J, 0x456, 0xA999),
        (44, C_BEQZ, -2, 0xDD7D),
        (44, C_BEQZ, 0x54, 0xC931),
    ],
)
def test_branches(kind, code, distance, expected):
    blob = patched(0x20000, {0x100: code}, (0x100, kind, 0x100 + distance))
    assert word(blob, 0x100, "<I" if expected > 0xFFFF else "<H") == expected


def test_calls_are_two_instructions():
    blob = patched(0x2000, {0: 0x00000097, 4: JALR}, (0, 19, 0x1804))
    assert (word(blob, 0), word(blob, 4)) == (0x00002097, 0x804080E7)


def test_differences_and_settings():
    blob = bytearray(64)
    struct.pack_into("<I", blob, 8, 7)
    blob[20] = 0xC5
    pairs = [(8, 35, 0x50), (8, 39, 0x30), (12, 56, 0x1234), (16, 34, 0x99), (20, 53, 0x47), (20, 52, 0x2)]
    relocate(blob, [Relocation(*p) for p in [*pairs, (24, 57, 4), (28, 51, 0)]])
    assert word(blob, 8) == 7 + 0x20 and word(blob, 12) == 0x1234 and word(blob, 16, "<H") == 0x99
    assert blob[20] == 0xC5 and word(blob, 24, "<i") == -20


@pytest.mark.parametrize(
    ("kind", "target", "message"),
    [
        (16, 0x4000, "out of reach: 16384"),
        (44, 0x400, "out of reach"),
        (17, 1, "out of reach"),
        (43, 0, "linker relaxation"),
        (20, 0, "relocation type 20"),
    ],
)
def test_what_cannot_be_applied_is_refused(kind, target, message):
    with pytest.raises(CodegenError, match=message):
        relocate(bytearray(16), [Relocation(0, kind, target)])
