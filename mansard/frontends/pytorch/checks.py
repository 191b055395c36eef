"""What an exported program requires of its tensors' contents: its assertions, and indices in range.

torch.export keeps assertions as calls without a result (``_assert_scalar``, ``_assert_async``), which
torch-mlir does not know. Their conditions become further results of the function, and those become asserts of
the Graph. The indices of embeddings, gathers and scatters become such results as well, with their range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mansard import dims
from mansard.errors import ImportModelError
from mansard.frontends.linalg.checks import ResultCheck
from mansard.frontends.pytorch.index_ops import IndexUse, index_uses
from mansard.frontends.pytorch.inserter import Inserter
from mansard.frontends.pytorch.locations import location_of, source_line
from mansard.frontends.pytorch.scalars import ScalarTensors, depends_on_layout, is_number
from mansard.frontends.pytorch.sizes.symbols import SymbolTable

aten = torch.ops.aten
_ASSERTIONS = frozenset({
    "_assert_scalar", "_functional_assert_scalar", "_assert_async", "_functional_assert_async",
    "sym_constrain_range", "sym_constrain_range_for_size",
})  # fmt: skip
_GENERATED = "Runtime assertion failed for expression "
"""How torch.export begins the message of an assertion that states none, or none that it keeps."""


@dataclass(frozen=True)
class Check:
    """A node whose result is checked, and how."""

    node: Any
    result: ResultCheck


def is_assertion(node: Any) -> bool:
    """Whether a node is an assertion that torch.export kept."""
    return node.op == "call_function" and _packet(node) in _ASSERTIONS


def collect_checks(graph: torch.fx.Graph, symbols: SymbolTable) -> tuple[Check, ...]:
    """The checks of a decomposed program, each once; nodes that compute their conditions are inserted.

    Raises ImportModelError for an assertion that never holds, UnsupportedOpError for one over an operator
    without a tensor form.
    """
    scalars = ScalarTensors(graph)
    checks: dict[Any, Check] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        conditions = _conditions(graph, scalars, node) if is_assertion(node) else ()
        for condition, message in conditions:
            check = Check(condition, ResultCheck(message, location_of(node)))
            checks.setdefault(condition, check)
        for use in index_uses(node):
            check = _index_check(graph, symbols, node, use)
            checks.setdefault((check.node, str(check.result.limits)), check)
    return tuple(checks.values())


def _packet(node: Any) -> str:
    return str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))


# Assertions ---------------------------------------------------------------------------------
def _conditions(graph: torch.fx.Graph, scalars: ScalarTensors, node: Any) -> Iterator[tuple[Any, str]]:
    """(node of a bool tensor, message) of each condition that an assertion states."""
    if "sym_constrain_range" in _packet(node):
        yield from _range_conditions(graph, scalars, node)
        return
    condition = node.args[0]
    message = _message(
        node, str(node.args[1]) if len(node.args) > 1 and isinstance(node.args[1], str) else ""
    )
    if not isinstance(condition, torch.fx.Node):
        if not condition:
            raise ImportModelError(f"the model always fails at {location_of(node)}: {message}")
        return
    if is_number(condition) and depends_on_layout(condition):
        return
    tensor = scalars.of(condition) if is_number(condition) else condition
    if tensor.meta["val"].dtype is not torch.bool:
        with graph.inserting_before(node):
            tensor = Inserter(graph, node).call(aten.ne.Scalar, tensor, 0)
    yield tensor, message


def _range_conditions(graph: torch.fx.Graph, scalars: ScalarTensors, node: Any) -> Iterator[tuple[Any, str]]:
    number = node.args[0]
    if not isinstance(number, torch.fx.Node):
        return
    limits = dict(zip(("min", "max"), node.args[1:], strict=False)) | node.kwargs
    low = limits.get("min")
    if low is None and _packet(node).endswith("for_size"):
        low = 0
    for limit, op, text in ((low, aten.ge.Scalar, ">="), (limits.get("max"), aten.le.Scalar, "<=")):
        if isinstance(limit, int):
            tensor = scalars.of(number)
            with graph.inserting_before(node):
                condition = Inserter(graph, node).call(op, tensor, limit)
            yield condition, _message(node, f"{_GENERATED}{number.meta.get('val')} {text} {limit}")


def _message(node: Any, message: str) -> str:
    """The assertion's message, or its expression, and the line of the model's source that states it."""
    if message.startswith(_GENERATED):
        message = f"assertion {message.removeprefix(_GENERATED).partition(' on node ')[0]} does not hold"
    return ": ".join(part for part in (message or "an assertion does not hold", source_line(node)) if part)


# Indices ------------------------------------------------------------------------------------
def _index_check(graph: torch.fx.Graph, symbols: SymbolTable, node: Any, use: IndexUse) -> Check:
    location = location_of(node)
    try:
        size = symbols.dim(use.size)
    except ImportModelError:  # a size that has no form as a dim expression
        return Check(_in_range(graph, node, use), ResultCheck(f"{use.op}: index out of range", location))
    low = dims.mul(size, -1) if use.wraps else 0
    return Check(use.indices, ResultCheck(use.op, location, (low, size)))


def _in_range(graph: torch.fx.Graph, node: Any, use: IndexUse) -> Any:
    """A bool tensor: which indices are in range of a symbolic size."""
    with graph.inserting_before(node):
        into = Inserter(graph, node)
        size = into.call(aten.sym_size.int, use.source, use.axis)
        below = into.call(aten.lt.Scalar, use.indices, size)
        shifted = into.call(aten.add.Scalar, use.indices, size) if use.wraps else use.indices
        return into.call(aten.logical_and.default, below, into.call(aten.ge.Scalar, shifted, 0))


def results_of(checks: Sequence[Check]) -> tuple[ResultCheck, ...]:
    """The checks for the importer of linalg, in the order of the nodes."""
    return tuple(check.result for check in checks)
