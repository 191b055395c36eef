"""Control flow and variables: branches, loops of a known length, which are unrolled, and states."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.entries import Entry, Unsupported, Variable
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.table import rule
from mansard.ir.shapes import same_shape

MAX_ITERATIONS = 4096


def _entries(node: Node, first: int = 0) -> list[Entry]:
    entries = [entry for entry in node.inputs[first:] if entry is not None]
    if len(entries) != len(node.inputs) - first:
        raise node.fail("an operand that is left out")
    return entries


def _truth(node: Node, entry: Entry) -> bool | None:
    """A condition that is known; None for one computed at run time."""
    if not isinstance(entry, Tensor):
        raise node.fail("a condition that is no tensor")
    return None if entry.content is None else bool(entry.content.reshape(-1)[0])


@rule("IF")
def if_rule(g: GraphImporter, node: Node) -> Sequence[Entry]:
    """One branch, or both and a choice between their results."""
    then, other = node.integer("then_subgraph_index"), node.integer("else_subgraph_index")
    operands = _entries(node, 1)
    known = _truth(node, node.tensor(0))
    if known is not None:
        return g.run(then if known else other, operands)
    before = g.variables.held()
    first = g.run(then, operands)
    if g.variables.held() != before:
        raise node.fail("a branch that assigns variables, by a condition computed at run time")
    second = g.run(other, operands)
    if g.variables.held() != before:
        raise node.fail("a branch that assigns variables, by a condition computed at run time")
    condition = g.reshape(node.tensor(0), ())
    return [_chosen(g, node, condition, a, b) for a, b in zip(first, second, strict=True)]


def _chosen(g: GraphImporter, node: Node, condition: Tensor, a: Entry, b: Entry) -> Entry:
    if isinstance(a, Unsupported) or isinstance(b, Unsupported):
        return Unsupported()
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dtype is not b.dtype:
        raise node.fail("branches whose results are no tensors of one type")
    if not same_shape(a.shape, b.shape):
        raise node.fail(f"branches whose results have shapes {list(a.shape)} and {list(b.shape)}")
    return g.map(lambda c, x, y: c.select(x, y), condition, a, b)


@rule("WHILE")
def while_rule(g: GraphImporter, node: Node) -> Sequence[Entry]:
    """A body repeated while its condition, which has to be known, holds."""
    condition, body = node.integer("cond_subgraph_index"), node.integer("body_subgraph_index")
    carried = _entries(node)
    for _ in range(MAX_ITERATIONS):
        (result,) = g.run(condition, carried)
        if isinstance(result, Unsupported):
            return [Unsupported()] * len(carried)
        known = _truth(node, result)
        if known is None:
            raise node.fail("a number of iterations that is not known when the model is compiled")
        if not known:
            return carried
        problems = len(g.problems)
        carried = g.run(body, carried)
        if len(g.problems) > problems:
            return [Unsupported()] * len(carried)
    raise node.fail(f"more than {MAX_ITERATIONS} iterations")


@rule("STABLEHLO_COMPOSITE")
def composite(g: GraphImporter, node: Node) -> Sequence[Entry]:
    """An op that stands for a subgraph."""
    return g.run(node.integer("decomposition_subgraph_index"), _entries(node))


# Variables ------------------------------------------------------------------------------------
@rule("VAR_HANDLE")
def var_handle(g: GraphImporter, node: Node) -> Variable:
    """A variable by its name."""
    options = node.operator.options
    if options is None:
        raise node.fail("a variable without a name")
    return Variable(f"{options.text('container')}{options.text('shared_name')}")


def _variable(node: Node) -> str:
    handle = node.inputs[0]
    if not isinstance(handle, Variable):
        raise node.fail("operand 0 is no variable")
    return handle.name


@rule("READ_VARIABLE")
def read_variable(g: GraphImporter, node: Node) -> Tensor:
    """What a variable holds."""
    return g.variables.read(g, _variable(node), node.result())


@rule("ASSIGN_VARIABLE")
def assign_variable(g: GraphImporter, node: Node) -> Sequence[Entry]:
    """New content for a variable."""
    g.variables.assign(_variable(node), node.tensor(1), node.info(1))
    return []


@rule("CALL_ONCE")
def call_once(g: GraphImporter, node: Node) -> Sequence[Entry]:
    """Initialisation: the constants that a subgraph assigns are what variables hold before the first call."""
    with g.variables.initialising():
        g.run(node.integer("init_subgraph_index"), [])
    return []
