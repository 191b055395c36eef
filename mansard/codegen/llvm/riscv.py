"""Relocations of RISC-V objects inside one flat image.

Numbers and formulas from the RISC-V ELF psABI specification. Code is made without linker relaxation, so
nothing moves: each relocation patches what stands at its place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.errors import CodegenError

_BRANCH, _JAL, _CALL, _CALL_PLT = 16, 17, 18, 19
_PCREL_HI20, _PCREL_LO12_I, _PCREL_LO12_S = 23, 24, 25
_ADD = {33: "B", 34: "H", 35: "I", 36: "Q"}
_SUB = {37: "B", 38: "H", 39: "I", 40: "Q"}
_SET = {54: "B", 55: "H", 56: "I"}
_SUB6, _SET6 = 52, 53
_ALIGN, _RVC_BRANCH, _RVC_JUMP, _RELAX, _PCREL32 = 43, 44, 45, 51, 57


@dataclass(frozen=True)
class Relocation:
    """What stands at ``place`` refers to ``target``; both are byte offsets into the image."""

    place: int
    kind: int
    target: int


def relocate(blob: bytearray, relocations: Sequence[Relocation]) -> None:
    """Apply every relocation of an object; raises CodegenError for kinds and distances beyond it."""
    # The low part of an address names the instruction that holds its high part.
    high = {r.place: r.target - r.place for r in relocations if r.kind == _PCREL_HI20}
    for r in relocations:
        if r.kind in (_PCREL_LO12_I, _PCREL_LO12_S):
            if r.target not in high:
                raise CodegenError(f"no high part at {r.target:#x} for the low part at {r.place:#x}")
            _low12(blob, r.place, high[r.target], store=r.kind == _PCREL_LO12_S)
        elif r.kind in _RULES:
            _RULES[r.kind](blob, r)
        elif r.kind == _ALIGN:
            raise CodegenError("the code was made for linker relaxation")
        elif r.kind != _RELAX:
            raise CodegenError(f"relocation type {r.kind} of EM_RISCV")


def _reach(distance: int, bits: int) -> int:
    if distance & 1 or not -(1 << (bits - 1)) <= distance < 1 << (bits - 1):
        raise CodegenError(f"a branch is out of reach: {distance}")
    return distance


def _edit(blob: bytearray, place: int, keep: int, bits: int, code: str = "<I") -> None:
    (old,) = struct.unpack_from(code, blob, place)
    struct.pack_into(code, blob, place, old & keep | bits)


def _bits(value: int, *fields: tuple[int, int, int]) -> int:
    """Fields of ``value``, each given as (source bit, count, target bit), moved to their targets."""
    return sum(((value >> source) & ((1 << count) - 1)) << target for source, count, target in fields)


def _high20(blob: bytearray, place: int, distance: int) -> None:
    # The low part is signed: rounding the high part up makes up for it.
    if not -(1 << 31) <= distance + 0x800 < 1 << 31:
        raise CodegenError(f"a relative address is out of reach: {distance}")
    _edit(blob, place, 0xFFF, (distance + 0x800) & 0xFFFFF000)


def _low12(blob: bytearray, place: int, distance: int, *, store: bool) -> None:
    if store:
        _edit(blob, place, 0x01FFF07F, _bits(distance, (5, 7, 25), (0, 5, 7)))
    else:
        _edit(blob, place, 0x000FFFFF, _bits(distance, (0, 12, 20)))


def _call(blob: bytearray, r: Relocation) -> None:
    """AUIPC and JALR."""
    _high20(blob, r.place, r.target - r.place)
    _low12(blob, r.place + 4, r.target - r.place, store=False)


def _branch(blob: bytearray, r: Relocation) -> None:
    d = _reach(r.target - r.place, 13)
    _edit(blob, r.place, 0x01FFF07F, _bits(d, (12, 1, 31), (5, 6, 25), (1, 4, 8), (11, 1, 7)))


def _jal(blob: bytearray, r: Relocation) -> None:
    d = _reach(r.target - r.place, 21)
    _edit(blob, r.place, 0xFFF, _bits(d, (20, 1, 31), (1, 10, 21), (11, 1, 20), (12, 8, 12)))


def _rvc_branch(blob: bytearray, r: Relocation) -> None:
    d = _reach(r.target - r.place, 9)
    moved = _bits(d, (8, 1, 12), (3, 2, 10), (6, 2, 5), (1, 2, 3), (5, 1, 2))
    _edit(blob, r.place, 0xE383, moved, "<H")


def _rvc_jump(blob: bytearray, r: Relocation) -> None:
    d = _reach(r.target - r.place, 12)
    moved = _bits(
        d, (11, 1, 12), (4, 1, 11), (8, 2, 9), (10, 1, 8), (6, 1, 7), (7, 1, 6), (1, 3, 3), (5, 1, 2)
    )
    _edit(blob, r.place, 0xE003, moved, "<H")


def _pcrel32(blob: bytearray, r: Relocation) -> None:
    struct.pack_into("<i", blob, r.place, r.target - r.place)


def _arithmetic(code: str, sign: int) -> Callable[[bytearray, Relocation], None]:
    """Add the target's address to what is there, subtract it (sign -1), or put it in place (0)."""

    def rule(blob: bytearray, r: Relocation) -> None:
        (old,) = struct.unpack_from("<" + code, blob, r.place)
        value = old + sign * r.target if sign else r.target
        struct.pack_into("<" + code, blob, r.place, value & ((1 << 8 * struct.calcsize(code)) - 1))

    return rule


def _six_bits(blob: bytearray, r: Relocation) -> None:
    old = blob[r.place]
    value = r.target if r.kind == _SET6 else old - r.target
    blob[r.place] = old & 0xC0 | value & 0x3F


_RULES: dict[int, Callable[[bytearray, Relocation], None]] = {
    _BRANCH: _branch,
    _JAL: _jal,
    _CALL: _call,
    _CALL_PLT: _call,  # the symbol is in this image, no PLT needed
    _PCREL_HI20: lambda blob, r: _high20(blob, r.place, r.target - r.place),
    _RVC_BRANCH: _rvc_branch,
    _RVC_JUMP: _rvc_jump,
    _PCREL32: _pcrel32,
    **{kind: _arithmetic(code, 1) for kind, code in _ADD.items()},
    **{kind: _arithmetic(code, -1) for kind, code in _SUB.items()},
    **{kind: _arithmetic(code, 0) for kind, code in _SET.items()},
    _SUB6: _six_bits,
    _SET6: _six_bits,
}
