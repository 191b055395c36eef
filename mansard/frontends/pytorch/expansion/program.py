"""The calls of an exported program that `mansard.frontends.pytorch.expansion` replaces, and their rules."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputSpec

from mansard.frontends.pytorch.decompositions.windows import max_pool_with_positions
from mansard.frontends.pytorch.expansion.complex_numbers import has_complex_numbers, in_real_numbers
from mansard.frontends.pytorch.expansion.control_flow import expand_cond, expand_scan, expand_while
from mansard.frontends.pytorch.expansion.known import KnownValues
from mansard.frontends.pytorch.expansion.recurrent import Table, unroll
from mansard.frontends.pytorch.expansion.splice import call, replace_results

aten = torch.ops.aten
Rule = Callable[[torch.fx.GraphModule, Any, KnownValues], None]


def _expand_max_pool(rank: int, module: torch.fx.GraphModule, node: Any, known: KnownValues) -> None:
    """Maxima whose positions are read; values alone are left to torch-mlir, which has no positions."""
    function = functools.partial(max_pool_with_positions, rank)
    results = call(module, node, lambda x: function(x, *node.args[1:], **node.kwargs), node.args[0])
    replace_results(module, node, results)


def _rules() -> dict[Any, Rule]:
    ops = torch.ops.higher_order
    return {
        ops.cond: expand_cond,
        ops.while_loop: expand_while,
        ops.scan: expand_scan,
        aten.max_pool1d_with_indices.default: functools.partial(_expand_max_pool, 1),
        aten.max_pool2d_with_indices.default: functools.partial(_expand_max_pool, 2),
        aten.max_pool3d_with_indices.default: functools.partial(_expand_max_pool, 3),
    }


def _is_wanted(node: Any, rules: dict[Any, Rule]) -> bool:
    if node.op != "call_function" or node.target not in rules:
        return False
    if isinstance(node.target, torch._ops.OpOverload):  # a maximum pool
        return any(u.target is operator.getitem and u.args[1] == 1 and u.users for u in node.users)
    return True


def expand(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without such calls and without complex numbers; itself if it has none.

    Raises UnsupportedOpError.
    """
    program = _expand_calls(program)
    if not has_complex_numbers(program):
        return program
    return updated(program, in_real_numbers(program))


def unroll_recurrent(program: torch.export.ExportedProgram, table: Table) -> torch.export.ExportedProgram:
    """A decomposed program with its recurrent networks unrolled, in ops that ``table`` decomposes into.

    Raises UnsupportedOpError.
    """
    return updated(program, program.graph_module) if unroll(program.graph_module, table) else program


def _expand_calls(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    rules = _rules()
    if not any(_is_wanted(node, rules) for node in program.graph.nodes):
        return program
    graph = torch.fx.Graph()
    copied: dict[Any, Any] = {}
    output = graph.graph_copy(program.graph, copied)
    graph.output(output).meta.update(_output(program.graph).meta)
    module = torch.fx.GraphModule(program.graph_module, graph)
    graph = module.graph
    known = KnownValues(_constants(program, graph))
    while wanted := [node for node in graph.nodes if _is_wanted(node, rules)]:
        for node in wanted:
            rules[node.target](module, node, known)
        graph.eliminate_dead_code()
    return updated(program, module)


def _constants(program: torch.export.ExportedProgram, graph: torch.fx.Graph) -> dict[Any, torch.Tensor]:
    placeholders = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    return {
        placeholders[spec.arg.name]: tensor
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.CONSTANT_TENSOR
        and isinstance(tensor := program.constants.get(str(spec.target)), torch.Tensor)
    }


def updated(
    program: torch.export.ExportedProgram, module: torch.fx.GraphModule, more: Sequence[OutputSpec] = ()
) -> torch.export.ExportedProgram:
    """The program with another graph, whose results may have other names; ``more`` describes those after the
    program's own."""
    output = _output(module.graph)
    results = list(output.args[0])
    with module.graph.inserting_before(output):
        for place, node in enumerate(results):
            if isinstance(node, torch.fx.Node) and node.op == "placeholder":
                results[place] = module.graph.call_function(aten.clone.default, (node,))
                results[place].meta = {k: v for k, v in node.meta.items() if k == "val"}
    output.args = (tuple(results),)
    signature = program.graph_signature
    outputs = []
    for spec, node in zip([*signature.output_specs, *more], results, strict=True):
        if isinstance(node, torch.fx.Node) and getattr(spec.arg, "name", node.name) != node.name:
            spec = type(spec)(spec.kind, type(spec.arg)(name=node.name), spec.target)
        outputs.append(spec)
    module.recompile()
    with warnings.catch_warnings():  # torch's own code does what it deprecates
        warnings.simplefilter("ignore")
        return program._update(module, ExportGraphSignature(list(signature.input_specs), outputs))


def _output(graph: torch.fx.Graph) -> Any:
    (node,) = (n for n in graph.nodes if n.op == "output")
    return node
