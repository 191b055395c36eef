"""Whether an exported program holds when a dim that may be 0 is 0.

Tracing assumes sizes of at least 2, and states no guard for what it concludes from that: ``x[:, :1]`` has one
column in the exported program, and none when ``x`` has none.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind

from mansard.frontends.pytorch.sizes.dynamic import STATED_ZERO, DimNames


def narrow_empty_dims(program: torch.export.ExportedProgram, dim_names: DimNames) -> None:
    """Dims with a stated minimum of 0 keep it if every size in the program holds at 0."""
    stated = _stated_zeros(program, dim_names)
    for symbol, dim in stated.items():
        if not _holds(program, {symbol}):
            setattr(dim, STATED_ZERO, False)
    kept = {s for s, dim in stated.items() if getattr(dim, STATED_ZERO)}
    if len(kept) > 1 and not _holds(program, kept):
        for symbol in kept:
            setattr(stated[symbol], STATED_ZERO, False)


def _stated_zeros(program: torch.export.ExportedProgram, dim_names: DimNames) -> dict[Any, Any]:
    """The dims that state a minimum of 0, by symbol."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    user = [s for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    stated: dict[Any, Any] = {}
    for (number, axis), dim in dim_names.items():
        root = getattr(dim, "root", dim)
        size = values[user[number].arg.name].shape[axis]
        if getattr(root, STATED_ZERO, False) and isinstance(size, torch.SymInt):
            stated.update(dict.fromkeys(size.node.expr.free_symbols, root))
    return stated


def _holds(program: torch.export.ExportedProgram, empty: set[Any]) -> bool:
    sizes = {s: 0 if s in empty else max(2, int(r.lower)) for s, r in program.range_constraints.items()}
    nodes = program.graph_module.graph.nodes
    inputs = [n.meta.get("val") for n in nodes if n.op == "placeholder"]
    mode = FakeTensorMode()
    try:
        with torch.no_grad(), mode:
            fakes = [_sized(v, sizes) for v in inputs]
            _SizeCheck(program.graph_module, sizes).run(*fakes)
    except Exception:  # an op that refuses the size, or that gives another one
        return False
    return True


class _SizeCheck(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a graph on tensors without data; raises ValueError where a size is not the one in the graph."""

    def __init__(self, module: torch.fx.GraphModule, sizes: dict[Any, int]) -> None:
        super().__init__(module)
        self.sizes = sizes

    def run_node(self, node: Any) -> Any:
        """Run one node and compare its result's shape."""
        result = super().run_node(node)
        traced = node.meta.get("val")
        if isinstance(traced, torch.Tensor) and isinstance(result, torch.Tensor):
            expected = [_evaluate(d, self.sizes) for d in traced.shape]
            if expected != list(result.shape):
                raise ValueError(f"{node} has shape {tuple(result.shape)}, not {expected}")
        return result


def _sized(value: Any, sizes: dict[Any, int]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty([_evaluate(d, sizes) for d in value.shape], dtype=value.dtype)


def _evaluate(size: Any, sizes: dict[Any, int]) -> int:
    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.expr.xreplace({s: sympy.Integer(v) for s, v in sizes.items()}))
