"""Weight streams as data: what a kernel and the device that copies its weights ahead agree on.

Rows of a matrix are split into parts of equal size. A part of every operand lies in a slot of workgroup
memory (`mansard.codegen.kernel.weight_streams` says who reads which).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MAX_SLOT = 2048
"""The most bytes of a slot."""
MAX_OPERANDS = 6
"""The most operands of a stream."""
ALIGNMENT = 16
"""Of the addresses and sizes of parts, in bytes: what devices copy is aligned so."""


class StreamOperand(NamedTuple):
    """A buffer that a stream reads: its binding, the bytes of a part, and the byte offset of parts in a
    slot."""

    binding: int
    part: int
    offset: int


@dataclass(frozen=True)
class WeightStream:
    """What is read: ``rows`` rows of ``parts`` parts each, contiguous, of every operand."""

    rows: int
    parts: int
    operands: tuple[StreamOperand, ...]

    @property
    def slot_bytes(self) -> int:
        """Bytes of a part of every operand."""
        return sum(operand.part for operand in self.operands)
