"""Decides which outputs are copied to blocks of the output pool (`mansard.runtime.memory.output_pool`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard.plan.plan import Plan
from mansard.plan.stores import Layout, Store
from mansard.runtime.execution.submission import IsSeparate


def pooled_outputs(
    plan: Plan,
    layout: Layout,
    binds: Sequence[bool],
    is_separate: IsSeparate,
    can_import: Callable[[int], bool],
) -> set[Store]:
    """The stores of outputs that may lie in different memory in each call.

    Slots that bind buffers at submission (``binds``) may access them in any way. The others may only copy to
    them, in submissions of their own, and must be able to import memory (``can_import``).
    """
    outputs = [spec.value for spec in plan.outputs]
    candidates = {
        store
        for value, store in layout.readbacks.items()
        if outputs.count(value) == 1 and store.role == "arena" and value not in layout.offset_of
    }
    sends = [(slot, copy) for (slot, _), copies in layout.copies_after.items() for copy in copies]
    copied_to = {copy.target for slot, copy in sends if not binds[slot] and is_separate(slot, copy)}
    return {
        store
        for store in (candidates & copied_to) - _fixed_stores(plan, layout, binds, is_separate)
        if all(binds[slot] or can_import(slot) for slot in store.members)
    }


def _fixed_stores(plan: Plan, layout: Layout, binds: Sequence[bool], is_separate: IsSeparate) -> set[Store]:
    """The stores whose address is recorded by a slot that does not bind buffers at submission."""
    fixed = {layout.of_value[exit_] for _, exit_ in plan.states}
    fixed |= {
        layout.of_value[value.id]
        for value in plan.values
        if not binds[value.device] and value.id in layout.of_value
    }
    copies = [(slot, copy) for (slot, _), before in layout.copies_before.items() for copy in before]
    copies += [(copy.value.device, copy) for copy in layout.transfers.values() if copy is not None]
    for slot, copy in copies:
        fixed |= set() if binds[slot] else {copy.source, copy.target}
    for slot, copy in ((slot, copy) for (slot, _), after in layout.copies_after.items() for copy in after):
        if not binds[slot]:
            fixed |= {copy.source} if is_separate(slot, copy) else {copy.source, copy.target}
    return fixed
