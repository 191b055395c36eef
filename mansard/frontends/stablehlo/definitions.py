"""Functions of elements that MLIR's own passes define in ops of StableHLO.

The definition is that of one element; its rules apply to whole tensors as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mansard.frontends.mlir_worker.passes import PipelineError, new_context, parse, run_pipeline
from mansard.frontends.stablehlo.entries import Entry
from mansard.frontends.stablehlo.node import Node

if TYPE_CHECKING:
    from mansard.frontends.stablehlo.graph import StableHloImporter


def expanded(g: StableHloImporter, node: Node) -> list[Entry]:
    """The results of an op by its definition. Raises UnsupportedOpError where there is none."""
    types = [str(value.type.element_type) for value in node.op.operands]
    results = [str(value.type.element_type) for value in node.op.results]
    try:
        module = definition(node.name, types, results)
    except PipelineError as error:
        raise node.fail(f"MLIR has no definition of it ({error.diagnostics[0].message})") from error
    function = module.body.operations[0].operation
    return g.block(function.regions[0].blocks[0], node.inputs, closed=True)


def definition(name: str, types: Sequence[str], results: Sequence[str]) -> Any:
    """A module whose ``main`` is an op of numbers by its definition; PipelineError where there is none."""
    taken, given = ([f"tensor<{kind}>" for kind in kinds] for kinds in (types, results))
    arguments = ", ".join(f"%x{i}: {kind}" for i, kind in enumerate(taken))
    names = ", ".join(f"%x{i}" for i in range(len(taken)))
    text = (
        f"func.func @main({arguments}) -> ({', '.join(given)}) {{\n"
        f'  %r:{len(given)} = "{name}"({names}) : ({", ".join(taken)}) -> ({", ".join(given)})\n'
        f"  return {', '.join(f'%r#{i}' for i in range(len(given)))} : {', '.join(given)}\n}}"
    )
    module = parse(text.encode(), new_context())
    run_pipeline(module, "func.func(chlo-legalize-to-stablehlo)")
    return module
