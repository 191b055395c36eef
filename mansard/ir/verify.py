"""The rules of the Graph IR; `verify` is run after building and after every pass.

What holds for a whole graph is checked here, what holds for an op by its class (`Op.verify`).
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from mansard import dims
from mansard.dims import Dim, Expr
from mansard.errors import VerificationError
from mansard.ir.graph import Graph
from mansard.ir.op_check import OpCheck
from mansard.ir.ops import OPS, Op
from mansard.ir.types import Value
from mansard.plan.constraints import RELATIONS

_verified: WeakKeyDictionary[Op, frozenset[Dim]] = WeakKeyDictionary()
"""Ops that were verified, with the dims that were known."""


def verify(graph: Graph) -> None:
    """Check every rule of the IR. Raises VerificationError naming the graph, the op and the value."""
    _Verifier(graph).run()


class _Verifier:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.defined: dict[Value, None] = {}
        self.names: dict[str, Value] = {}
        self.symbols = self._symbols()
        self.contracts = frozenset(self.symbols.values())
        self.op: Op | None = None
        self._values = OpCheck((), (), self.symbols, self.fail)

    def fail(self, message: str) -> VerificationError:
        """The error for ``message``, with the op it belongs to."""
        place = f"graph {self.graph.name!r}"
        if self.op is not None:
            results = ", ".join(map(str, self.op.outputs)) or "no result"
            place += f", op {self.op.name} ({results})"
            if self.op.location.text:
                place += f" from {self.op.location}"
        return VerificationError(f"{place}: {message}")

    def run(self) -> None:
        graph = self.graph
        for constraint in graph.constraints:
            for side in (constraint.left, constraint.right):
                self._values.known(side, f"the constraint {constraint}")
            if constraint.relation not in RELATIONS:
                raise self.fail(f"the constraint {constraint} is none of {', '.join(RELATIONS)}")
        for value in (*graph.inputs, *(s.before for s in graph.states), *graph.constants):
            self._define(value)
        for op in graph.ops:
            self.op = op
            self._operands_defined(op)
            # What an op may look like depends on itself and the dims there are: most ops of a changed
            # graph were checked before.
            if _verified.get(op) != self.contracts:
                self._operation(op)
                _verified[op] = self.contracts
            for value in op.outputs:
                self._define(value)
        self.op = None
        self._ends()

    # Values ---------------------------------------------------------------------------------
    def _symbols(self) -> dict[str, Dim]:
        symbols: dict[str, Dim] = {dim.name: dim for dim in self.graph.parameters}
        for value in (*self.graph.inputs, *(s.before for s in self.graph.states)):
            for d in value.type.shape:
                for s in d.symbols() if isinstance(d, Expr) else ():
                    if symbols.setdefault(s.name, s) != s:
                        raise VerificationError(
                            f"graph {self.graph.name!r}: {value} states the contract {s}, "
                            f"but {symbols[s.name]} was stated before"
                        )
        return symbols

    def _define(self, value: Value) -> None:
        if value in self.defined:
            raise self.fail(f"{value} is defined twice")
        if value.name in self.names:
            raise self.fail(f"two values are named {value}")
        for d in value.type.shape:
            if not isinstance(d, int):
                self._values.known(d, f"the shape of {value}")
            if dims.bounds(d)[1] < 0:
                raise self.fail(f"{value} has the negative dim {d}")
        self.defined[value] = None
        self.names[value.name] = value

    def _operands_defined(self, op: Op) -> None:
        for value in op.inputs:
            if value not in self.defined:
                raise self.fail(f"{value} is used before it is defined")

    def _ends(self) -> None:
        graph = self.graph
        for value in graph.outputs:
            if value not in self.defined:
                raise self.fail(f"output {value} is not defined")
        if graph.output_names and len(graph.output_names) != len(graph.outputs):
            raise self.fail(f"{len(graph.outputs)} outputs have {len(graph.output_names)} names")
        for state in graph.states:
            if state.after not in self.defined:
                raise self.fail(f"the final value {state.after} of state {state.before} is not defined")
            self._values.typed(state.after, state.before.type.shape, state.before.type.dtype)

    def _operation(self, op: Op) -> None:
        if OPS.get(type(op).__name__) is not type(op):
            raise self.fail("is not an op of the Graph IR")
        op.verify(OpCheck(op.inputs, op.outputs, self.symbols, self.fail))
