"""Control flow: branches, and loops whose length is known, which are unrolled."""

from __future__ import annotations

from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.stablehlo.entries import Entry, Token
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.table import rule
from mansard.ir.shapes import same_shape

MAX_ITERATIONS = 4096


@rule("stablehlo.while")
def while_loop(g: StableHloImporter, node: Node) -> list[Entry]:
    """A body for as long as its condition holds, which has to be known in every iteration."""
    carried = list(node.inputs)
    condition, body = node.region(0), node.region(1)
    for _ in range(MAX_ITERATIONS + 1):
        (running,) = g.block(condition, carried)
        flag = g.tensor_of(running)
        if flag.content is None or flag.symbolic:
            raise node.fail("a loop whose number of iterations is computed at run time")
        if not bool(flag.content.reshape(-1)[0]):
            return carried
        carried = g.block(body, carried)
    raise node.fail(f"a loop of more than {MAX_ITERATIONS} iterations")


@rule("stablehlo.if")
def if_rule(g: StableHloImporter, node: Node) -> list[Entry]:
    """One branch, or both and a choice between their results."""
    condition = node.tensor(0)
    if condition.content is not None and not condition.symbolic:
        return g.block(node.region(0 if bool(condition.content.reshape(-1)[0]) else 1), [])
    flag = g.reshape(condition, ())
    first, second = (g.block(node.region(i), []) for i in range(2))
    return [_chosen(g, node, flag, a, b) for a, b in zip(first, second, strict=True)]


@rule("stablehlo.case")
def case(g: StableHloImporter, node: Node) -> list[Entry]:
    """The branch of a number, or the last one for any other number."""
    number, count = node.tensor(0), len(node.op.regions)
    if number.content is not None and not number.symbolic:
        place = int(number.content.reshape(-1)[0])
        return g.block(node.region(place if 0 <= place < count else count - 1), [])
    results = [g.block(node.region(i), []) for i in range(count)]
    chosen = results[-1]
    place_of = g.reshape(number, ())
    for i in reversed(range(count - 1)):
        flag = g.map(lambda e, n=i: e == n, place_of)
        chosen = [_chosen(g, node, flag, a, b) for a, b in zip(results[i], chosen, strict=True)]
    return chosen


def _chosen(g: StableHloImporter, node: Node, flag: Tensor, a: Entry, b: Entry) -> Entry:
    if isinstance(a, Token):
        return a
    x, y = g.tensor_of(a), g.tensor_of(b)
    if x is y:
        return x
    if not same_shape(x.shape, y.shape):
        raise node.fail(f"branches whose results have shapes {list(x.shape)} and {list(y.shape)}")
    return g.map(lambda c, p, q: c.select(p, q), flag, x, y)


@rule("stablehlo.optimization_barrier", "mhlo.copy")
def barrier(g: StableHloImporter, node: Node) -> list[Entry]:
    """The operands."""
    return list(node.inputs)


@rule("stablehlo.tuple")
def tuple_rule(g: StableHloImporter, node: Node) -> list[Entry]:
    """Operands in one value."""
    return [tuple(node.inputs)]


@rule("stablehlo.get_tuple_element")
def tuple_element(g: StableHloImporter, node: Node) -> list[Entry]:
    """One of the operands of a tuple."""
    entries = node.inputs[0]
    assert isinstance(entries, tuple)
    return [entries[node.integer("index")]]


@rule("stablehlo.create_token", "stablehlo.after_all")
def token(g: StableHloImporter, node: Node) -> list[Entry]:
    """An order of effects, of which there are none."""
    return [Token()]
