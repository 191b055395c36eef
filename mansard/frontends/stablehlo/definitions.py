"""Functions of elements that MLIR's own passes define in ops of StableHLO.

The definition is that of one element; its rules apply to whole tensors as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mansard.frontends.mlir_worker.passes import PipelineError, new_context, parse, run_pipeline
from mansard.frontends.stablehlo.entries import Entry
from mansard.frontends.stablehlo.node import Node

if TYPE_CHECKING:
    from mansard.frontends.stablehlo.graph import StableHloImporter


def expanded(g: StableHloImporter, node: Node) -> list[Entry]:
    """The results of an op by its definition. Raises UnsupportedOpError where there is none."""
    types = [f"tensor<{value.type.element_type}>" for value in node.op.operands]
    results = [f"tensor<{value.type.element_type}>" for value in node.op.results]
    arguments = ", ".join(f"%x{i}: {kind}" for i, kind in enumerate(types))
    names = ", ".join(f"%x{i}" for i in range(len(types)))
    text = (
        f"func.func @main({arguments}) -> ({', '.join(results)}) {{\n"
        f'  %r:{len(results)} = "{node.name}"({names}) : ({", ".join(types)}) -> ({", ".join(results)})\n'
        f"  return {', '.join(f'%r#{i}' for i in range(len(results)))} : {', '.join(results)}\n}}"
    )
    try:
        module = parse(text.encode(), new_context())
        run_pipeline(module, "func.func(chlo-legalize-to-stablehlo)")
    except PipelineError as error:
        raise node.fail(f"MLIR has no definition of it ({error.diagnostics[0].message})") from error
    function = module.body.operations[0].operation
    return g.block(function.regions[0].blocks[0], node.inputs, closed=True)
