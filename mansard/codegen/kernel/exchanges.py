"""Exchanged values in kernels (`mansard.hal.exchanges`).

A body of a persistent kernel waits for the elements that it loads from a binding of its kernel's exchange, if
the dispatch's record says that the value is exchanged. Elements are then loaded and stored one by one, or as
vectors and words that lie side by side; other forms of access there are none. Other emitters ignore it.
"""

from __future__ import annotations

from collections.abc import Iterator

from mansard.codegen.kernel.ir import Binding, Inst, Kernel
from mansard.hal.exchanges import DTYPES, MAX_BINDINGS


def exchanged(kernel: Kernel) -> frozenset[int]:
    """The bindings of a kernel's exchange that it accesses in no other form than exchanged values can be."""
    wanted = frozenset(n for n in kernel.exchange.bindings if n < MAX_BINDINGS)
    if not wanted:
        return wanted
    return wanted - {binding.index for binding, inst in _accesses(kernel) if not _possible(binding, inst)}


def _accesses(kernel: Kernel) -> Iterator[tuple[Binding, Inst]]:
    for node in kernel.body.walk():
        if isinstance(node, Inst):
            memories = (memory for memory in node.attrs.values() if isinstance(memory, Binding))
            yield from ((memory, node) for memory in memories)


def _possible(binding: Binding, inst: Inst) -> bool:
    if binding.dtype not in DTYPES or inst.args[0].type.lanes > 1:
        return False
    if binding.writable:
        return inst.op == "store"
    if inst.op == "load" and inst.result is not None:
        lanes, bytes_ = inst.result.type.lanes, inst.result.type.lanes * binding.dtype.itemsize
        return lanes == 1 or (bytes_ in (4, 8, 16) and inst.attrs.get("aligned", False))
    return inst.op == "load_words"
