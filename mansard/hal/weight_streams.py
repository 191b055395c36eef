"""Weight streams as data: what a kernel and the device that copies its weights ahead agree on.

Rows of a matrix are split into parts of equal size. A part of every operand lies in a slot of workgroup
memory (`mansard.codegen.kernel.weight_streams` says who reads which).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MAX_SLOT = 2048
"""The most bytes of a slot."""
SUBGROUPS = 8
"""Subgroups of a workgroup, which read parts in turn."""
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
    """What is read: ``rows`` rows of ``parts`` parts each, contiguous, of every operand.

    With several ``products`` the operands are those of each in turn, of equal sizes, and a slot has parts of
    one of them. A row then has its parts of the first product, and behind these those of the next.
    """

    rows: int
    parts: int
    operands: tuple[StreamOperand, ...]
    products: int = 1
    """1, or a power of two, as is ``parts``; as many parts as a row has together divide `SUBGROUPS`, so that
    each subgroup reads parts of one product."""

    @property
    def of_product(self) -> int:
        """The operands of each product."""
        return len(self.operands) // self.products

    @property
    def slot_bytes(self) -> int:
        """Bytes of a part of every operand of a product."""
        return sum(operand.part for operand in self.operands[: self.of_product])
