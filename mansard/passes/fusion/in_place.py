"""In-place updates of states: a scatter into a state need not copy it first.

Before (a key cache takes one new row; at the end of the call its new contents replace the old)::

    %after = scatter %cache, %where, %row        copies the cache, then writes the row
    state %cache := %after                       copies it back

After: `Dispatch.in_place` names ``%cache``; the kernel only writes the row, into the state's buffer. Only
where nothing reads the old contents later, and where no assertion can fail the call after it has begun: it
would leave states unchanged (`mansard.passes.canonical.guard_states`).
"""

from __future__ import annotations

from dataclasses import replace

from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.graph import State
from mansard.ir.ops import Reshape
from mansard.passes.canonical.guard_states import guarded_asserts


def mark_in_place(graph: DispatchGraph) -> DispatchGraph:
    """Mark dispatches with the states that they update in place."""
    if any(guarded_asserts(graph.graph)):
        return graph
    order = {dispatch: i for i, dispatch in enumerate(graph.dispatches)}
    marked: dict[Dispatch, Dispatch] = {}
    for state in graph.graph.states:
        dispatch = next((d for d in graph.dispatches if graph.base(state.after) in d.outputs), None)
        if dispatch is None or not _updates(graph, dispatch, state):
            continue
        readers = [d for d in graph.dispatches if state.before in d.inputs and d is not dispatch]
        if all(order[d] < order[dispatch] for d in readers):
            marked[dispatch] = replace(dispatch, in_place=frozenset({state.before}))
    if not marked:
        return graph
    return replace(graph, dispatches=tuple(marked.get(d, d) for d in graph.dispatches))


def _updates(graph: DispatchGraph, dispatch: Dispatch, state: State) -> bool:
    """Whether one op of a dispatch can update the state in place, and no op reads what it overwrites."""
    ops = [op for op in dispatch.ops if not isinstance(op, Reshape)]
    updates = [op for op in ops if op.in_place_operand is not None]
    if len(updates) != 1:
        return False
    (update,) = updates
    inputs = [graph.base(v) for op in ops if op is not update for v in op.inputs]
    operands = [graph.base(v) for v in update.inputs]
    assert update.in_place_operand is not None
    target = operands.pop(update.in_place_operand)
    return target is state.before and state.before not in (*inputs, *operands)
