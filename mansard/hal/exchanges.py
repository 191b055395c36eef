"""Exchanged values as data: small vectors that dispatches of a persistent kernel pass on without a barrier.

A dispatch that reads such a value waits for each of its elements rather than for all of the dispatch before
it. An element that has not been written yet is empty: all of its bits are 1. That is a NaN, in place of which
kernels store another one. As both sides access single elements, neither needs a fence.

That takes memory that nothing else uses, is empty at first, and is written once. The device gives a value
such memory where all dispatches that use it know how (`mansard.codegen.kernel.exchanges`), and otherwise its
ordinary memory, which is read without waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.dtypes import DType

DTYPES = (DType.BF16, DType.F16, DType.F32)
"""The element types of exchanged values."""
MAX_BINDINGS = 31
"""Bindings of a kernel that may be exchanged, from the first on: a bit of an i32 for each."""
MAX_BYTES = 1 << 20
"""The largest exchanged value."""
MAX_VECTOR = 10 << 10
"""The largest one that a product reads: all of its workgroups do so, again and again while they wait, which
takes bandwidth from those that are still at work. Its copy in shared memory must also leave room for slots of
2 KiB, or a persistent kernel has smaller slots for all products (Qwen3-1.7B, whose down projection reads 12
KiB: 1.16 ms a step instead of 1.52 on an H200)."""


@dataclass(frozen=True)
class Exchange:
    """How a kernel takes part."""

    bindings: frozenset[int] = frozenset()
    """The bindings whose elements it waits for, or stores so that others can wait for them."""
    overwrites: frozenset[int] = frozenset()
    """The bindings of which it writes every element, whatever it was."""


NO_EXCHANGE = Exchange()
