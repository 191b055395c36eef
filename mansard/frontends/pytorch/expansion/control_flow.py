"""torch.cond, while_loop and scan as ops without control flow.

A branch that is not known at import is computed like the other one, and chosen element by element. Loops are
unrolled: their number of iterations, or a bound of it, has to follow from constants.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from mansard.errors import UnsupportedOpError
from mansard.frontends.pytorch.checks import is_assertion
from mansard.frontends.pytorch.expansion.known import KnownValues, UnknownError
from mansard.frontends.pytorch.expansion.splice import replace_results, splice
from mansard.frontends.pytorch.index_ops import CONDITIONAL
from mansard.frontends.pytorch.locations import location_of

aten = torch.ops.aten
MOST_ITERATIONS = 1000
MOST_NODES = 50_000
"""What a loop may become when it is unrolled."""


def expand_cond(module: torch.fx.GraphModule, node: Any, known: KnownValues) -> None:
    """One branch if the condition is known, else both and a choice for each result."""
    condition, *branches = node.args[:3]
    operands = node.args[3] if len(node.args) > 3 else ()
    truth = known.truth(condition)
    if truth is not None:
        taken = _subgraph(module, branches[0 if truth else 1])
        replace_results(module, node, splice(module, node, taken, operands))
        return
    results = [_conditional(module, node, _subgraph(module, branch), operands) for branch in branches]
    chosen = [_choice(module, node, condition, *pair) for pair in zip(*results, strict=True)]
    replace_results(module, node, chosen)


def _conditional(
    module: torch.fx.GraphModule, node: Any, part: torch.fx.GraphModule, operands: Sequence[Any]
) -> list[Any]:
    """The results of a subgraph that may not be used."""
    if any(map(is_assertion, part.graph.nodes)):
        raise UnsupportedOpError(
            _name(node), location_of(node), "an assertion in a part of the model that may not be executed"
        )
    last = node.prev
    results = splice(module, node, part, operands)
    new = last.next
    while new is not node:  # an index out of range is no error where the branch is not taken
        new.meta["custom"] = {**(new.meta.get("custom") or {}), CONDITIONAL: True}
        new = new.next
    return results


def _choice(module: torch.fx.GraphModule, node: Any, condition: Any, first: Any, second: Any) -> Any:
    """``first`` where the condition holds."""
    if first is second:
        return first
    values = [v.meta.get("val") if isinstance(v, torch.fx.Node) else v for v in (first, second)]
    if not all(isinstance(v, torch.Tensor) for v in values):
        raise UnsupportedOpError(
            _name(node), location_of(node), "a result that is a number: return a tensor of rank 0 instead"
        )
    with module.graph.inserting_before(node):
        if not isinstance(condition.meta.get("val"), torch.Tensor):
            condition = _as_tensor(module, node, condition)
        return _inserted(module, node, aten.where.self, (condition, first, second))


def _as_tensor(module: torch.fx.GraphModule, node: Any, condition: Any) -> Any:
    return _inserted(module, node, aten.scalar_tensor.default, (condition,), {"dtype": torch.bool})


def expand_while(module: torch.fx.GraphModule, node: Any, known: KnownValues) -> None:
    """The body as often as the condition may hold; once it is not known, what it changes is chosen."""
    condition, body = (_subgraph(module, part) for part in node.args[:2])
    state, further = list(node.args[2]), list(node.args[3] if len(node.args) > 3 else ())
    goes_on: Any = None
    for _ in range(MOST_ITERATIONS + 1):
        (holds,) = splice(module, node, condition, [*state, *further])
        truth = known.truth(holds)
        if truth is False:
            for variable in state if goes_on is not None else ():
                known.forget(variable)
            replace_results(module, node, state)
            return
        if truth is None:
            goes_on = _both(module, node, goes_on, holds)
        state = _iterate(module, node, known, body, goes_on, state, further)
    raise _unbounded(node)


def _both(module: torch.fx.GraphModule, node: Any, goes_on: Any, holds: Any) -> Any:
    with module.graph.inserting_before(node):
        if not isinstance(holds.meta.get("val"), torch.Tensor):
            holds = _as_tensor(module, node, holds)
        return (
            holds if goes_on is None else _inserted(module, node, aten.logical_and.default, (goes_on, holds))
        )


def _iterate(
    module: torch.fx.GraphModule,
    node: Any,
    known: KnownValues,
    body: torch.fx.GraphModule,
    goes_on: Any,
    state: Sequence[Any],
    further: Sequence[Any],
) -> list[Any]:
    """The state after one more iteration, which is the old one where the loop has ended.

    What is known of a variable while the loop goes on is enough to know when its condition ends.
    """
    _limit(module, node)
    if goes_on is None:
        return splice(module, node, body, [*state, *further])
    after: list[Any] = []
    for new, old in zip(_conditional(module, node, body, [*state, *further]), state, strict=True):
        after.append(_choice(module, node, goes_on, new, old))
        with contextlib.suppress(UnknownError):
            known.assume(after[-1], known.of(new))
    return after


def _unbounded(node: Any) -> UnsupportedOpError:
    return UnsupportedOpError(
        _name(node),
        location_of(node),
        f"a loop whose number of iterations is not known at import, or is above {MOST_ITERATIONS}: its "
        "condition has to become false by constants alone, as in `(i < 10) & (error > limit)`, where i "
        "counts from a constant",
    )


def expand_scan(module: torch.fx.GraphModule, node: Any, known: KnownValues) -> None:
    """The body once for each row, and the rows of results stacked."""
    body = _subgraph(module, node.args[0])
    carried, lines = list(node.args[1]), list(node.args[2])
    further = list(node.args[3] if len(node.args) > 3 else ())
    length = lines[0].meta["val"].shape[0]
    if not isinstance(length, int) or not 0 < length <= MOST_ITERATIONS:
        raise UnsupportedOpError(
            _name(node),
            location_of(node),
            f"over a dim of size {length}; supported: static sizes from 1 to {MOST_ITERATIONS}",
        )
    rows: list[list[Any]] = []
    for number in range(length):
        _limit(module, node)
        with module.graph.inserting_before(node):
            here = [_inserted(module, node, aten.select.int, (x, 0, number)) for x in lines]
        results = splice(module, node, body, [*carried, *here, *further])
        carried, row = results[: len(carried)], results[len(carried) :]
        rows.append(row)
    with module.graph.inserting_before(node):
        stacked = [_inserted(module, node, aten.stack.default, (list(y),)) for y in zip(*rows, strict=True)]
    replace_results(module, node, [*carried, *stacked])


def _limit(module: torch.fx.GraphModule, node: Any) -> None:
    if len(module.graph.nodes) > MOST_NODES:
        raise UnsupportedOpError(
            _name(node),
            location_of(node),
            f"a loop that becomes more than {MOST_NODES} ops when it is unrolled",
        )


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _subgraph(module: torch.fx.GraphModule, reference: Any) -> torch.fx.GraphModule:
    part = getattr(module, str(reference.target))
    assert isinstance(part, torch.fx.GraphModule)
    return part


def _inserted(
    module: torch.fx.GraphModule, like: Any, target: Any, args: tuple[Any, ...], kwargs: Any = None
) -> Any:
    """A call, with its value's metadata from its operands'."""
    new = module.graph.call_function(target, args, kwargs or {})
    new.meta = {k: v for k, v in like.meta.items() if k in ("stack_trace", "nn_module_stack")}
    values = torch.fx.node.map_arg((args, kwargs or {}), lambda n: n.meta.get("val"))
    tensors = [v for v in torch.utils._pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
    mode = getattr(tensors[0], "fake_mode", None) if tensors else None
    if mode is not None:
        with torch.no_grad(), mode:
            new.meta["val"] = target(*values[0], **values[1])
    return new
