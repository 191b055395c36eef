"""Weight streams: constants that a persistent kernel copies to workgroup memory before they are needed.

A product of a matrix with a vector reads every weight once, at addresses that depend on nothing that is
computed. A persistent kernel can therefore have copies of weights in flight while it still waits for the
vector. Rows of the matrix are split into *parts* of equal size. A workgroup computes adjacent rows, and its
subgroups take their parts in turn: subgroup ``s`` reads parts ``s``, ``s + subgroups`` and so on.

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
from mansard.hal.weight_streams import WeightStream

STREAM_OPS = frozenset({"stream_wait", "stream_load", "stream_next"})


@dataclass(frozen=True, eq=False)
class StreamedKernel:
    """A kernel that reads a stream. It computes the same as the kernel that it belongs to, on a grid of any
    number of workgroups."""

    kernel: Kernel
    stream: WeightStream
