"""A Graph from its text: the opposite of `mansard.ir.printer`, for graphs that were dumped and edited.

Declarations (``dim``, ``param``, ``require``, ``input``, ``state``, ``const``) and ops stand on lines of
their own; blank lines and lines that begin with ``//`` are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mansard.dims import Dim
from mansard.errors import ImportModelError, ShapeContractError
from mansard.ir.graph import Graph, State
from mansard.ir.interpreter.scalar import Array
from mansard.ir.op_text import read_op
from mansard.ir.ops import Op
from mansard.ir.text.scanner import Scanner, Scope
from mansard.ir.types import Constant, Value
from mansard.ir.verify import verify
from mansard.plan.constraints import RELATIONS, ShapeConstraint

Loader = Callable[[], Array]


def parse_graph(text: str, weights: Mapping[str, Loader] | None = None) -> Graph:
    """The graph that ``text`` describes, verified.

    ``weights`` loads the data of constants, each by the name of its value, or by its key where no entry
    has the name. A constant without an entry has a key and no data: to read it is an error.

    Raises GraphSyntaxError for text that is no graph, with the line and column and what was expected
    there, and VerificationError for a graph that breaks the rules of the IR.
    """
    parser = _Parser(weights or {})
    for number, line in enumerate(text.split("\n"), 1):
        scanner = Scanner(line, number, parser.scope)
        if not scanner.done and not scanner.ahead("//"):
            parser.line(scanner)
    scanner.rest()
    graph = parser.graph(scanner)
    verify(graph)
    return graph


class _Parser:
    def __init__(self, weights: Mapping[str, Loader]) -> None:
        self.scope = Scope()
        self.weights = weights
        self.name: str | None = None
        self.parameters: list[Dim] = []
        self.constraints: list[ShapeConstraint] = []
        self.inputs: list[Value] = []
        self.states: list[tuple[Value, Scanner, int, Constant | None]] = []
        self.constants: dict[Value, Constant] = {}
        self.ops: list[Op] = []
        self.outputs: list[tuple[Value, str]] | None = None

    def line(self, s: Scanner) -> None:
        """Read one line that is not blank."""
        if self.name is None:
            s.expect("graph")
            self.name = s.name("the name of the graph")
        elif self.outputs is not None:
            s.fail("nothing after the return")
        elif s.accept("dim"):
            self._contract(s)
        elif s.accept("param"):
            self.parameters.append(self._contract(s))
        elif s.accept("require"):
            self.constraints.append(_constraint(s))
        elif s.accept("input"):
            self.inputs.append(s.definition())
        elif s.accept("state"):
            self._state(s)
        elif s.accept("const"):
            value = s.definition()
            self.constants[value] = self._constant(value, s)
        elif s.accept("return"):
            self._return(s)
        else:
            self.ops.append(read_op(s))
        s.end()

    def graph(self, end: Scanner) -> Graph:
        """The graph, after the last line."""
        if self.name is None:
            end.fail("'graph'")
        if self.outputs is None:
            end.fail("'return'")
        return Graph(
            self.name,
            tuple(self.inputs),
            tuple(value for value, _ in self.outputs),
            tuple(self.ops),
            self.constants,
            tuple(self._bound(*state) for state in self.states),
            tuple(name for _, name in self.outputs),
            tuple(self.parameters),
            tuple(self.constraints),
        )

    def _contract(self, s: Scanner) -> Dim:
        start = s.position
        name = s.word("the name of a dim")
        if name in self.scope.dims:
            s.fail("a name that no other dim has", start)
        s.expect(":")
        low = s.integer("the lower bound")
        s.expect("to")
        high = s.integer("the upper bound")
        multiple = s.integer("what divides the dim") if s.accept("step") else 1
        typical = s.integer("the typical value") if s.accept("typical") else None
        try:
            dim = Dim(name, low, high, multiple, typical)
        except ShapeContractError as error:
            s.fail(f"a contract that some value keeps ({error})", start)
        self.scope.dims[name] = dim
        return dim

    def _state(self, s: Scanner) -> None:
        before = s.definition()
        s.expect("->")
        after = s.position
        s.value_name()
        initial = self._constant(before, s) if s.accept("initial") else None
        self.states.append((before, s, after, initial))

    def _bound(self, before: Value, s: Scanner, after: int, initial: Constant | None) -> State:
        """A state, once the value it ends with is defined."""
        s.position = after
        name = s.value_name()
        if name not in self.scope.values:
            s.fail("a value that the graph defines", after)
        return State(before, self.scope.values[name], initial)

    def _constant(self, value: Value, s: Scanner) -> Constant:
        key = s.string("the key of the constant, in quotes")
        loader = self.weights.get(value.name) or self.weights.get(key)
        return Constant(key, loader or _absent(value, key))

    def _return(self, s: Scanner) -> None:
        self.outputs = []
        while not s.done:
            if self.outputs:
                s.expect(",")
            value = s.value()
            self.outputs.append((value, s.name("the output's name") if s.accept("as") else value.name))


def _constraint(s: Scanner) -> ShapeConstraint:
    left = s.dim("<=!")
    relation = s.one_of(tuple(RELATIONS)) or s.fail(f"one of {', '.join(RELATIONS)}")
    return ShapeConstraint(left, relation, s.dim())


def _absent(value: Value, key: str) -> Loader:
    def load() -> Array:
        raise ImportModelError(f"the graph was read from text without the data of {value} ({key!r})")

    return load
