"""Reads the little of a SPIR-V module that must be checked before a driver sees it."""

from __future__ import annotations

import struct

from mansard.errors import ArtifactError

MAGIC = 0x07230203
_HEADER_WORDS = 5
_OP_ENTRY_POINT = 15
_GL_COMPUTE = 5


def entry_points(code: bytes) -> frozenset[str]:
    """The names of a module's compute entry points.

    Raises ArtifactError when the bytes are no SPIR-V module in this machine's byte order: drivers
    trust what they are given, and some crash on the rest.
    """
    if len(code) % 4 or len(code) < 4 * _HEADER_WORDS:
        raise ArtifactError(f"{len(code)} bytes are not a SPIR-V module")
    words = struct.unpack(f"<{len(code) // 4}I", code)
    if words[0] != MAGIC:
        raise ArtifactError(f"not a SPIR-V module: it starts with {words[0]:#010x}, not {MAGIC:#010x}")
    names = set()
    at = _HEADER_WORDS
    while at < len(words):
        count, opcode = words[at] >> 16, words[at] & 0xFFFF
        if count == 0 or at + count > len(words):
            raise ArtifactError(f"the SPIR-V module is cut off at word {at}")
        if opcode == _OP_ENTRY_POINT and words[at + 1] == _GL_COMPUTE:
            text = code[4 * (at + 3) : 4 * (at + count)]
            names.add(text.split(b"\0", 1)[0].decode())
        at += count
    return frozenset(names)
