"""Which stores only one submission uses: what it writes there, nothing outside of it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mansard.plan.plan import DispatchStep, Plan
from mansard.plan.stores import Layout, Store, StoreCopy
from mansard.runtime.execution.submission import CopyPiece, Item, SubmissionSpec


def transient_stores(
    plan: Plan, layout: Layout, specs: Sequence[Sequence[SubmissionSpec]]
) -> frozenset[Store]:
    """The stores in the memory of a call that commands of a single submission use, and neither states nor
    results are in."""
    used: dict[Store, set[SubmissionSpec]] = {}
    for spec in (spec for local in specs for spec in local):
        for store in (store for item in spec.items for store in _stores(item, layout)):
            used.setdefault(store, set()).add(spec)
    kept = {*layout.readbacks.values(), *(layout.of_value[exit_] for _, exit_ in plan.states)}
    return frozenset(
        store
        for store, users in used.items()
        if len(users) == 1 and store.role == "arena" and store not in kept
    )


def _stores(item: Item, layout: Layout) -> Iterator[Store]:
    """The stores that the commands of an item use."""
    if isinstance(item, DispatchStep):
        yield from (layout.of_value[binding.value] for binding in item.bindings)
    elif isinstance(item, (StoreCopy, CopyPiece)):
        copy = item.copy if isinstance(item, CopyPiece) else item
        yield from (copy.source, copy.target)
