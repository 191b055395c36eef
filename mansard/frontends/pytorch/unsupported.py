"""Every op of a graph that cannot be imported, once one is known: so that an error names them all."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator
from typing import Any

import torch

from mansard.errors import CompileError, UnsupportedOpError
from mansard.frontends.emission.unsupported import joined
from mansard.frontends.linalg.importer import Argument
from mansard.frontends.linalg.module import import_linalg
from mansard.frontends.mlir_worker.passes import PipelineError, new_context, parse
from mansard.frontends.mlir_worker.pool import lower
from mansard.frontends.mlir_worker.process import WorkerDiedError
from mansard.frontends.pytorch.culprit import distinct, is_value, part_of
from mansard.frontends.pytorch.export import quiet
from mansard.frontends.pytorch.locations import location_of, source_line
from mansard.frontends.pytorch.lowering import PIPELINES, PROBE_SECONDS, lowering_failure, torch_bytecode
from mansard.frontends.pytorch.rewrites import rewrite
from mansard.frontends.pytorch.scalars import compute_in_tensors
from mansard.frontends.pytorch.sizes.symbols import SymbolTable
from mansard.frontends.pytorch.supported_ops import SUPPORTED
from mansard.frontends.pytorch.weights import dtype_of

_BUDGET_SECONDS = 30.0
"""After so long, the ops that are known by then are named."""
_MOST_NAMED = 20
_LITERAL = "constant."
"""What torch-mlir names an operand that is a number: the op that it cannot lower is the one that takes it."""


def with_others(program: torch.export.ExportedProgram, first: UnsupportedOpError) -> UnsupportedOpError:
    """An error that names every op of a decomposed program that cannot be imported; ``first`` if it is the
    only one. Each op is imported on its own, so that one which only fails beside others is not among them;
    of the ops of one place in the user's source the first that fails is named.
    """
    symbols = SymbolTable.of(program, {})
    deadline = time.monotonic() + _BUDGET_SECONDS
    problems: dict[str, UnsupportedOpError] = {}
    # Parts of results are tried with the ops that give them.
    calls = [n for n in program.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    for node in distinct(calls):
        if time.monotonic() > deadline or len(problems) >= _MOST_NAMED:
            break
        for nodes in _computations(node):
            problem = _problem(nodes, symbols)
            if problem is not None:
                problems.setdefault(problem.location or problem.op, problem)
                break
    if problems and first.op.startswith(_LITERAL):
        return joined(list(problems.values()))
    if (first.location or first.op) not in problems:
        problems = {first.op: first, **problems}
    return first if len(problems) < 2 else joined(list(problems.values()))


def _computations(node: Any) -> Iterator[list[Any]]:
    """What to import for an op: itself, or with each result of it that is used."""
    if is_value(node.meta.get("val")):
        yield [node]
        return
    for user in node.users:
        if user.op == "call_function" and is_value(user.meta.get("val")):
            yield [node, user]


def _problem(nodes: list[Any], symbols: SymbolTable) -> UnsupportedOpError | None:
    """Why these nodes, alone, cannot be imported; None if they can, or if something else is wrong."""
    part = part_of(nodes)
    try:
        with quiet():
            compute_in_tensors(part)
            rewrite(part)
        module = parse(lower(torch_bytecode(part), PIPELINES, PROBE_SECONDS), new_context())
        inputs = [node.meta.get("val") for node in part.nodes if node.op == "placeholder"]
        if all(isinstance(value, torch.Tensor) for value in inputs):
            arguments = [_argument(f"x{number}", value, symbols) for number, value in enumerate(inputs)]
            import_linalg(module, arguments, body_asserts=False)
    except UnsupportedOpError as error:
        return _named(nodes[0], error.detail)
    except WorkerDiedError as error:
        return _named(nodes[0], f"lowering this op, torch-mlir {error}")
    except PipelineError as error:
        reason = lowering_failure(error)
        return _named(nodes[0], reason.detail if isinstance(reason, UnsupportedOpError) else str(reason))
    except CompileError:
        return None
    return None


def _argument(name: str, value: torch.Tensor, symbols: SymbolTable) -> Argument:
    return Argument(name, tuple(map(symbols.dim, value.shape)), dtype_of(value.dtype, name))


def _named(node: Any, reason: str) -> UnsupportedOpError:
    name = str(node.target).removesuffix(".default")
    line = source_line(node)
    reason = reason.removesuffix(f"; {SUPPORTED}")
    return UnsupportedOpError(name, location_of(node), f"{reason} (in `{line}`)" if line else reason)
