"""A structured op from outside the package: what its class states, everything else goes by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from support.graph_runner import compiled
from support.graphs import F32, maps, op

from mansard.analysis.structure import attributes
from mansard.compiler.identity import dispatch_from_data, dispatch_key, dispatch_to_data
from mansard.errors import CodegenError, CompileError, GraphSyntaxError, UnsupportedOpError, VerificationError
from mansard.ir import Graph, GraphBuilder, Op
from mansard.ir.graph_data import graph_from_bytes, graph_to_bytes
from mansard.ir.interpreter.graph import interpret
from mansard.ir.op_check import OpCheck
from mansard.ir.ops import find_op, register_op
from mansard.ir.parser import parse_graph
from mansard.ir.scalar import Arg
from mansard.ir.text.attributes import DIMS, INTEGER, Flag, Keyword
from mansard.passes.fusion.fuse import fuse
from mansard.placement.cost import estimate_work


@dataclass(frozen=True, eq=False)
class Roll(Op):
    """Elements moved along an axis; those that leave at one end come in at the other, negated or not."""

    axis: int
    shifts: tuple[int, ...]
    negated: bool = False

    attributes = (Keyword("axis", INTEGER), Keyword("by", DIMS, field="shifts"), Flag("negated"))

    def verify(self, check: OpCheck) -> None:
        check.counts((1,), 1)
        check.axis(self.inputs[0], self.axis)
        check.typed(self.output, self.inputs[0].type.shape, self.inputs[0].type.dtype)
        if not self.shifts:
            raise check.fail("is by nothing")

    def evaluate(self, operands, symbols):
        rolled = np.roll(operands[0], sum(self.shifts), self.axis)
        return [-rolled if self.negated else rolled]

    def operations(self):
        return self.output.type.elements


@pytest.fixture(scope="module", autouse=True)
def declared():
    if find_op("roll") is None:
        register_op(Roll)


def model(**fields) -> Graph:
    b = GraphBuilder("rolled")
    x = b.input("x", (4, 6), F32)
    y = b.generic([x], [maps(0, 1)], (4, 6), op("exp", Arg(0, F32)))
    stated = {"axis": 1, "shifts": (2, 3), **fields}
    return b.build([b.append(Roll((y,), (b.value("roll", (4, 6), F32),), **stated))])


def test_meaning():
    x = np.arange(24, dtype=np.float32).reshape(4, 6) / 24
    (y,) = interpret(model(negated=True), [x])
    np.testing.assert_allclose(y, -np.roll(np.exp(x), 5, 1), rtol=1e-6)


def test_rules():
    with pytest.raises(VerificationError, match=r"op roll \(%roll\): axis 2 is not a dim of %v"):
        model(axis=2)
    with pytest.raises(VerificationError, match="is by nothing"):
        model(shifts=())


def test_text():
    graph = model(negated=True)
    assert "%roll: 4x6xf32 = roll %v axis 1 by [2, 3] negated\n" in str(graph)
    assert str(parse_graph(str(graph))) == str(graph)
    with pytest.raises(GraphSyntaxError, match="line 4, column 35: expected 'by', not 'negated'"):
        parse_graph(str(graph).replace("by [2, 3] ", ""))


def test_data():
    graph = model()
    data = graph_to_bytes(graph, {})
    assert data is not None
    assert str(graph_from_bytes(data, {})) == str(graph)
    keys = {dispatch_key(d) for d in fuse(graph).dispatches}
    again = {dispatch_key(dispatch_from_data(dispatch_to_data(d), "k")) for d in fuse(graph).dispatches}
    assert again == keys
    assert keys != {dispatch_key(d) for d in fuse(model(negated=True)).dispatches}


def test_identity():
    one, same, other = (model(axis=axis).ops[1] for axis in (1, 1, 0))
    assert attributes(one) == attributes(same) != attributes(other)


def test_dispatch_and_cost():
    _, roll = fuse(model()).dispatches
    assert [type(o) for o in roll.ops] == [Roll]
    assert estimate_work(roll).operations == 24


def test_a_schedule_has_to_be_added():
    with pytest.raises(CodegenError, match="no schedule for op 'roll'"):
        compiled(model(), "cpu")


def test_an_op_without_a_meaning():
    @dataclass(frozen=True, eq=False)
    class Silent(Op):
        def verify(self, check: OpCheck) -> None:
            check.counts((1,), 1)

    if find_op("silent") is None:
        register_op(Silent)
    cls = find_op("silent")
    b = GraphBuilder()
    x = b.input("x", (4,), F32)
    graph = b.build([b.append(cls((x,), (b.value("y", (4,), F32),)))])
    with pytest.raises(UnsupportedOpError, match="the reference interpreter has no rule"):
        interpret(graph, [np.zeros(4, np.float32)])


# What cannot be declared ----------------------------------------------------------------------
def test_wrong_declarations():
    @dataclass(frozen=True, eq=False)
    class Ruled(Op):
        def verify(self, check: OpCheck) -> None:
            pass

    @dataclass(frozen=True, eq=False)
    class Sort(Ruled):
        pass

    @dataclass(frozen=True, eq=False)
    class Unruled(Op):
        pass

    @dataclass(frozen=True, eq=False)
    class Unstated(Ruled):
        axis: int

    class Plain:
        pass

    for cls, message in (
        (Sort, "'Sort': an op of this name is declared already"),
        (Unruled, "it states no rules"),
        (Unstated, "its text does not state axis"),
        (Plain, "it is no dataclass derived from Op"),
    ):
        with pytest.raises(CompileError, match=message):
            register_op(cls)
    assert find_op("unruled") is None


def test_an_op_that_is_not_declared_is_refused():
    @dataclass(frozen=True, eq=False)
    class Unknown(Op):
        pass

    b = GraphBuilder()
    x = b.input("x", (4,), F32)
    b.append(Unknown((x,), (b.value("y", (4,), F32),)))
    with pytest.raises(VerificationError, match="is not an op of the Graph IR"):
        b.build([x])
