"""Weight streams: constants that a persistent kernel copies to workgroup memory before they are needed.

A product of a matrix with a vector reads every weight once, at addresses that depend on nothing that is
computed. A persistent kernel can therefore have copies of weights in flight while it still waits for the
vector. Rows of the matrix are split into *parts* of equal size. A workgroup computes adjacent rows, and its
subgroups take their parts in turn: of the ``n`` parts of a workgroup, subgroup ``s`` reads ``s, s +
subgroups, ...``.

A part of every operand of the stream lies in a *slot* of workgroup memory, of which each subgroup has
several:

==============  ==========================================================================
stream_wait     i32: the address of the subgroup's next slot, whose copies have arrived
stream_load     [slot: i32, byte: index]; i32 of 1, 2 or 4 lanes: words of the slot, aligned to all of them
stream_next     the slot has been read and may be filled again; no result
workgroups      int: workgroups of the grid
==============  ==========================================================================

Whole subgroups reach all of them. Only PTX for persistent kernels is generated from them
(`mansard.codegen.nvptx.persistent`).
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.codegen.kernel.ir import Kernel

STREAM_OPS = frozenset({"stream_wait", "stream_load", "stream_next"})


@dataclass(frozen=True)
class StreamOperand:
    """A buffer that a stream reads."""

    binding: int
    part: int
    """Bytes of a part, a multiple of 16."""
    offset: int
    """Byte offset of its part in a slot."""


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


@dataclass(frozen=True, eq=False)
class StreamedKernel:
    """A kernel that reads a stream. It computes the same as the kernel that it belongs to, on a grid of any
    number of workgroups."""

    kernel: Kernel
    stream: WeightStream
