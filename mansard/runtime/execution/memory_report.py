"""The rows of the memory ledger for a session: its weights, states, contexts, pools and code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard.hal import MemoryKind, SwappedExecutable
from mansard.plan.memory_uses import (
    ACTIVATIONS,
    CODE,
    INPUTS,
    OUTPUTS,
    SCRATCH,
    STAGING,
    STATES,
    WEIGHTS,
)
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.execution.context import Context
from mansard.runtime.execution.environment import ExecutionEnvironment
from mansard.runtime.memory.ledger import CALLER, SWAPPED, MemoryLedger, MemoryRow, merge_rows
from mansard.runtime.memory.stores import Allocation


def memory_report(environment: ExecutionEnvironment, contexts: Sequence[Context]) -> MemoryLedger:
    """The memory of a session and its idle contexts; what only running calls use is not counted."""
    rows = _weight_rows(environment)
    rows += [
        replace(_allocation_row(environment, a), what=STATES) for a in environment.states.memory.allocations
    ]
    rows += _workspace_rows(environment, contexts)
    for context in contexts:
        rows += _context_rows(context)
    rows += _output_pool_rows(environment)
    for slot in environment.slots:
        rows += _code_rows(slot)
    return MemoryLedger(rows)


def _code_rows(slot: BoundSlot) -> list[MemoryRow]:
    """What is always loaded; the area in which other programs take turns, and those that do."""
    fixed = [e for e in slot.executables if not isinstance(e, SwappedExecutable)]
    size = sum(memoryview(executable.spec.code).nbytes for executable in fixed)
    rows = [MemoryRow(CODE, slot.name, "executables", size)]
    area = slot.area
    if area is not None:
        loaded = sum(program.loaded is not None for program in area.programs)
        how = f"{slot.memory(MemoryKind.DEVICE)}, {loaded} of {len(area.programs)} programs are loaded"
        if slot.owns_area:
            rows.append(MemoryRow(CODE, slot.name, "area of programs", area.budget, None, (), how))
        swapped = [e.size for e in slot.executables if isinstance(e, SwappedExecutable)]
        how = f"{len(swapped)} programs, loaded in turn; of the area at most {area.peak} bytes were in use"
        rows.append(MemoryRow(CODE, slot.name, SWAPPED, sum(swapped), None, (), how))
    return rows


def _weight_rows(environment: ExecutionEnvironment) -> list[MemoryRow]:
    names = [slot.name for slot in environment.slots]
    return merge_rows(
        [
            MemoryRow(WEIGHTS, names[r.slot], r.kind, r.bytes, None, (names[r.slot],), r.how)
            for r in environment.constants.rows
        ]
    )


def _workspace_rows(environment: ExecutionEnvironment, contexts: Sequence[Context]) -> list[MemoryRow]:
    rows = []
    for workspace in environment.workspaces.all():
        slot, size = environment.slots[workspace.slot], workspace.buffer.size
        plans = [context.workspace_plans.get(workspace.slot) for context in contexts]
        lower_bound = max((plan.arena.lower_bound for plan in plans if plan), default=0)
        how = slot.memory(MemoryKind.DEVICE)
        rows.append(
            MemoryRow(ACTIVATIONS, slot.name, "device", size, min(lower_bound, size), (slot.name,), how)
        )
    return rows


def _context_rows(context: Context) -> list[MemoryRow]:
    """What a context holds, and the caller's arrays that a call of its shapes uses in place."""
    environment = context.environment
    rows = [
        _allocation_row(environment, a, a.lower_bound if a.use == ACTIVATIONS else None)
        for a in context.memory.allocations
    ]
    for number, slot in enumerate(environment.slots):
        tables = sum(submission.commands.host_bytes for submission in context.submissions[number])
        rows.append(MemoryRow(SCRATCH, slot.name, "recordings", tables))
        arguments = [store for store in context.bindings.stores[number] if store.role == "argument"]
        for output in (False, True):
            stores = [store for store in arguments if store.output == output]
            size = sum(context.value_bytes[store.values[0].id] for store in stores)
            if stores:
                rows.append(MemoryRow(OUTPUTS if output else INPUTS, slot.name, CALLER, size))
    return rows


def _output_pool_rows(environment: ExecutionEnvironment) -> list[MemoryRow]:
    """Output blocks; those that no device has imported serve devices that work in host memory."""
    kind, how = MemoryKind.SHARED.value, "host memory"
    rows = []
    for slots, size in environment.output_pool.held.items():
        users = tuple(environment.slots[slot].name for slot in slots)
        if users:
            imported = f"{how}, imported by {', '.join(users)}"
            rows.append(MemoryRow(STAGING, users[0], kind, size, None, users, imported))
        else:
            host = next(s.name for s in environment.slots if s.device.capabilities.late_binding)
            rows.append(MemoryRow(OUTPUTS, host, kind, size, None, (host,), how))
    return rows


def _allocation_row(
    environment: ExecutionEnvironment, allocation: Allocation, lower_bound: int | None = None
) -> MemoryRow:
    owner = environment.slots[allocation.slot]
    users = tuple(environment.slots[slot].name for slot in allocation.users)
    others = [name for name in users if name != owner.name]
    how = owner.memory(allocation.kind) + (f", imported by {', '.join(others)}" if others else "")
    kind = allocation.kind.value
    return MemoryRow(allocation.use, owner.name, kind, allocation.bytes, lower_bound, users, how)
