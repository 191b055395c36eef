"""A linker for one object: lays out its sections in one flat, relocated image.

The image is mapped read-execute as a whole, at any address. So every relocation must be relative to
the place it patches, and nothing may be undefined: kernels call no library.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.codegen.llvm import riscv
from mansard.codegen.llvm.riscv import Relocation
from mansard.errors import CodegenError

_ALLOC, _WRITE = 0x2, 0x1  # sh_flags
_CODE = 0x4
_PAGE = 4096
_RISCV = "EM_RISCV"


@dataclass
class Image:
    """Code and read-only data as one blob, and the byte offset of every function."""

    code: bytes
    functions: dict[str, int]


@dataclass
class _Layout:
    blob: bytearray = field(default_factory=bytearray)
    offsets: dict[int, int] = field(default_factory=dict)


_Patch = Callable[[bytearray, int, int, int], None]


def link(data: bytes) -> Image:
    """Link one ELF object.

    Raises:
        CodegenError: naming undefined symbols, writable sections or relocations it cannot apply.
    """
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(io.BytesIO(data))
    machine = elf["e_machine"]
    if machine not in _PATCHES and machine != _RISCV:
        raise CodegenError(f"no linker for {machine} code yet; known: {', '.join(_PATCHES)}, {_RISCV}")
    symbols = elf.get_section_by_name(".symtab")
    _check_symbols(symbols)
    layout = _lay_out(elf)
    relocations: list[Relocation] = []
    for section in elf.iter_sections():
        if section["sh_type"] == "SHT_RELA" and section["sh_info"] in layout.offsets:
            relocations += _resolved(section, symbols, layout)
        elif section["sh_type"] == "SHT_REL" and section["sh_info"] in layout.offsets:
            raise CodegenError(f"relocations without addend in {section.name}")
    if machine == _RISCV:
        riscv.relocate(layout.blob, relocations)
    else:
        _relocate(layout.blob, relocations, machine)
    functions = {
        symbol.name: layout.offsets[symbol["st_shndx"]] + symbol["st_value"]
        for symbol in symbols.iter_symbols()
        if symbol["st_info"]["type"] == "STT_FUNC"
    }
    padding = -len(layout.blob) % _PAGE
    return Image(bytes(layout.blob) + bytes(padding), functions)


def _check_symbols(symbols: Any) -> None:
    undefined = [s.name for s in symbols.iter_symbols() if s.name and s["st_shndx"] == "SHN_UNDEF"]
    if undefined:
        raise CodegenError(f"the code calls functions it does not have: {', '.join(sorted(undefined))}")


def _lay_out(elf: Any) -> _Layout:
    """Code first, then read-only data, each at its alignment."""
    layout = _Layout()
    wanted = []
    for number, section in enumerate(elf.iter_sections()):
        flags = section["sh_flags"]
        if not flags & _ALLOC or not section["sh_size"] or section.name.startswith(".eh_frame"):
            continue
        if flags & _WRITE:
            raise CodegenError(f"the code has a writable section {section.name}")
        wanted.append((not flags & _CODE, number, section))
    for _, number, section in sorted(wanted, key=lambda item: item[:2]):
        align = max(16, section["sh_addralign"])
        layout.blob += bytes(-len(layout.blob) % align)
        layout.offsets[number] = len(layout.blob)
        layout.blob += section.data()
    return layout


def _resolved(section: Any, symbols: Any, layout: _Layout) -> Iterator[Relocation]:
    """The relocations of a section, with places and targets in the image."""
    base = layout.offsets[section["sh_info"]]
    for relocation in section.iter_relocations():
        symbol = symbols.get_symbol(relocation["r_info_sym"])
        home = symbol["st_shndx"]
        if home not in layout.offsets and relocation["r_info_sym"]:
            raise CodegenError(f"relocation against {symbol.name!r} in a section that is not loaded")
        target = layout.offsets.get(home, 0) + symbol["st_value"] + relocation["r_addend"]
        yield Relocation(base + relocation["r_offset"], relocation["r_info_type"], target)


def _relocate(blob: bytearray, relocations: Sequence[Relocation], machine: str) -> None:
    for r in relocations:
        patch = _PATCHES[machine].get(r.kind)
        if patch is None:
            raise CodegenError(f"relocation type {r.kind} of {machine}")
        patch(blob, r.place, r.target, r.target - r.place)


def _fits(value: int, bits: int, what: str) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise CodegenError(f"{what} is out of reach: {value}")
    return value


def _relative32(blob: bytearray, place: int, _target: int, distance: int) -> None:
    struct.pack_into("<i", blob, place, _fits(distance, 32, "a 32-bit relative address"))


def _relative64(blob: bytearray, place: int, _target: int, distance: int) -> None:
    struct.pack_into("<q", blob, place, distance)


def _got_load(blob: bytearray, place: int, _target: int, distance: int) -> None:
    """``mov reg, [rip + symbol@GOT]`` becomes ``lea reg, [rip + symbol]``: there is no GOT."""
    if blob[place - 2] != 0x8B:
        raise CodegenError("a GOT access that is not a load cannot be relaxed")
    blob[place - 2] = 0x8D
    _relative32(blob, place, _target, distance)


def _word(blob: bytearray, place: int) -> int:
    return int(struct.unpack_from("<I", blob, place)[0])


def _adr_page(blob: bytearray, place: int, target: int, _distance: int) -> None:
    """ADRP: the image is mapped at a page, so page distances inside it are fixed."""
    pages = _fits((target >> 12) - (place >> 12), 21, "an ADRP page")
    code = _word(blob, place) & ~((3 << 29) | (0x7FFFF << 5))
    code |= (pages & 3) << 29 | ((pages >> 2) & 0x7FFFF) << 5
    struct.pack_into("<I", blob, place, code)


def _low12(shift: int) -> _Patch:
    """ADD or a load or store of ``1 << shift`` bytes: the low 12 bits of the address."""

    def patch(blob: bytearray, place: int, target: int, _distance: int) -> None:
        low = target & 0xFFF
        if low & ((1 << shift) - 1):
            raise CodegenError(f"offset {low:#x} is not a multiple of {1 << shift}")
        code = _word(blob, place) & ~(0xFFF << 10)
        struct.pack_into("<I", blob, place, code | (low >> shift) << 10)

    return patch


def _branch26(blob: bytearray, place: int, _target: int, distance: int) -> None:
    words = _fits(distance >> 2, 26, "a branch") & 0x3FFFFFF
    struct.pack_into("<I", blob, place, _word(blob, place) & ~0x3FFFFFF | words)


_PATCHES: dict[str, dict[int, _Patch]] = {
    # Numbers from the System V ABI supplements.
    "EM_X86_64": {
        2: _relative32,  # R_X86_64_PC32
        4: _relative32,  # R_X86_64_PLT32: the symbol is in this image, no PLT needed
        24: _relative64,  # R_X86_64_PC64
        41: _got_load,  # R_X86_64_GOTPCRELX
        42: _got_load,  # R_X86_64_REX_GOTPCRELX
    },
    "EM_AARCH64": {
        260: _relative64,  # R_AARCH64_PREL64
        261: _relative32,  # R_AARCH64_PREL32
        275: _adr_page,  # R_AARCH64_ADR_PREL_PG_HI21
        277: _low12(0),  # R_AARCH64_ADD_ABS_LO12_NC
        278: _low12(0),  # R_AARCH64_LDST8_ABS_LO12_NC
        284: _low12(1),  # R_AARCH64_LDST16_ABS_LO12_NC
        285: _low12(2),  # R_AARCH64_LDST32_ABS_LO12_NC
        286: _low12(3),  # R_AARCH64_LDST64_ABS_LO12_NC
        299: _low12(4),  # R_AARCH64_LDST128_ABS_LO12_NC
        282: _branch26,  # R_AARCH64_JUMP26
        283: _branch26,  # R_AARCH64_CALL26
    },
}
