"""Loads before it is known that their values are needed, so that they are there when that is."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mansard.codegen.evaluate import Evaluator
from mansard.codegen.loop_nest import Read, Root
from mansard.ir.types import Value


def plain_reads(ev: Evaluator, root: Root, others: Collection[Value] = ()) -> list[Read]:
    """What a root reads from buffers at plain addresses without a guard, but for ``others``."""
    reads = {
        (read.value, read.address): read
        for read in ev.nest.reads(root)
        if read.address is not None
        and not read.guards
        and read.value not in ev.held
        and read.value not in others
        and read.value.type.dtype.bits >= 8
    }
    return list(reads.values())


def load_ahead(ev: Evaluator, reads: Iterable[Read]) -> None:
    """Load `plain_reads` at the bound loops, for reads there within this scope; each place once."""
    for read in reads:
        assert read.address is not None
        if not ev.knows(read.value, read.address):
            ev.provide(read.value, read.address, ev.load(read.value, read.address))
