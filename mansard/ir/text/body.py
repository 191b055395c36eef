"""Scalar bodies as infix text, and back.

``%x[…]`` reads an operand by an index map, ``%x{…}`` gathers at computed (clamped) indices, ``d0`` is the
index of a loop, ``dim(…)`` the value of a dim expression, ``f16(…)`` a conversion. Shared subexpressions
are named ``t0``, ``t1``. Literals are f32, i64 or bool unless they say otherwise (``1.0:f16``).

Operands are in order of their first use (`operand_order`), else they are listed before the body, which may
then call them ``in0``, ``in1``. Neither direction recurses, since bodies may be deeper than Python's stack.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mansard import dims
from mansard.dtypes import DType
from mansard.ir.scalar import (
    Apply,
    Arg,
    Bitcast,
    Cast,
    Const,
    DimValue,
    Gather,
    Index,
    Scalar,
    children,
    rewrite,
    walk,
)
from mansard.ir.scalar_ops import ScalarOp, find_scalar_op, result_dtype, scalar_ops
from mansard.ir.text.literals import default_dtype, number_text, read_text, value_text
from mansard.ir.text.scanner import Scanner
from mansard.ir.types import IndexMap, Value

_NAME = re.compile(r"(t|d|in)(\d+)(?![\w.])")
_DTYPES = {d.value: d for d in DType}

Operand = tuple[Value, IndexMap | None]
"""An operand and how a body reads it; no map where it is gathered from only."""


# Printing -----------------------------------------------------------------------------------
def body_text(operands: Sequence[Operand], body: Scalar) -> str:
    """The operands, where they have to be listed, and the body in braces."""
    texts = [read_text(*operand) for operand in operands]
    gathered = {n.operand for n in walk(body) if isinstance(n, Gather)}
    listed = (
        operand_order(body) != list(range(len(operands)))
        or len(set(operands)) < len(operands)
        or any(operands[i][1] is not None for i in gathered)
    )
    reads = [
        t if operands.count(o) == 1 else f"in{i}"
        for i, (o, t) in enumerate(zip(operands, texts, strict=True))
    ]
    gathers = [
        value_text(value) if _gathered(operands, value) == i else f"in{i}"
        for i, (value, _) in enumerate(operands)
    ]
    text = f"{{{_Printer(reads, gathers).text(body)}}}"
    return f"({', '.join(texts)}) {text}" if listed else text


def operand_order(body: Scalar) -> list[int]:
    """Operands in order of their first use in ``body``."""
    used = (n.index if isinstance(n, Arg) else n.operand for n in walk(body) if isinstance(n, (Arg, Gather)))
    return list(dict.fromkeys(used))


def _gathered(operands: Sequence[Operand], value: Value) -> int | None:
    """The one of the listed operands that a gather from ``value`` means, None where that is not clear."""
    places = [i for i, (v, _) in enumerate(operands) if v is value]
    places = [i for i in places if operands[i][1] is None] or places
    return places[0] if len(places) == 1 else None


class _Printer:
    def __init__(self, reads: Sequence[str], gathers: Sequence[str]) -> None:
        self.reads, self.gathers = reads, gathers

    def text(self, body: Scalar) -> str:
        """The body with shared inner nodes named, so that the text stays as small as the expression."""
        nodes = list(walk(body))
        uses = Counter(id(kid) for node in nodes for kid in children(node))
        names: dict[int, str] = {}
        definitions: list[str] = []
        for node in nodes:
            if uses[id(node)] > 1 and children(node):
                definition = _bare(self._expression(node, names))
                names[id(node)] = f"t{len(names)}"
                definitions.append(f"{names[id(node)]} = {definition}; ")
        return "".join(definitions) + _bare(self._expression(body, names))

    def _expression(self, root: Scalar, names: Mapping[int, str]) -> str:
        done: dict[int, str] = {}
        for node in walk(root):
            done[id(node)] = names.get(id(node)) or self._node(node, [done[id(k)] for k in children(node)])
        return done[id(root)]

    def _node(self, node: Scalar, kids: list[str]) -> str:
        match node:
            case Arg():
                return self.reads[node.index]
            case Const():
                typed = "" if node.dtype is default_dtype(node.value) else f":{node.dtype.value}"
                return number_text(node.value) + typed
            case Index():
                return f"d{node.dim}"
            case DimValue():
                return f"dim({dims.to_expr(node.value)})"
            case Gather():
                return f"{self.gathers[node.operand]}{{{', '.join(map(_bare, kids))}}}"
            case Cast():
                return f"{node.dtype.value}({_bare(kids[0])})"
            case Bitcast():
                return f"bitcast_{node.dtype.value}({_bare(kids[0])})"
            case Apply():
                declared = find_scalar_op(node.op)
                if declared is not None and declared.infix is not None:
                    return f"({kids[0]} {declared.infix.symbol} {kids[1]})"
                return f"{node.op}({', '.join(map(_bare, kids))})"


def _bare(text: str) -> str:
    """``text`` without parentheses that enclose all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if i == len(text) - 1 else text
    return text


# Parsing ------------------------------------------------------------------------------------
def read_body(scanner: Scanner) -> tuple[list[Operand], Scalar]:
    """The opposite of `body_text`."""
    return _Parser(scanner).body()


@dataclass(frozen=True)
class _Operator:
    op: str
    precedence: int


@dataclass
class _Frame:
    """An open parenthesis, brace or call: what was read inside it, and what to make of that."""

    close: str
    finish: Callable[[list[Scalar]], Scalar]
    many: bool = False
    arguments: list[Scalar] = field(default_factory=list)
    operands: list[Scalar] = field(default_factory=list)
    operators: list[_Operator] = field(default_factory=list)

    def reduce(self, precedence: int) -> None:
        """Apply the operators that bind at least as tightly."""
        while self.operators and self.operators[-1].precedence >= precedence:
            right, left = self.operands.pop(), self.operands.pop()
            self.operands.append(_apply(self.operators.pop().op, [left, right]))


class _Parser:
    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.operands: dict[Operand, int] = {}
        self.listed: list[Operand] | None = None
        self.names: dict[str, Scalar] = {}
        infix = {op.infix.symbol: _Operator(op.name, op.infix.precedence) for op in scalar_ops() if op.infix}
        self.operators = infix
        self.symbol = re.compile("|".join(re.escape(s) for s in sorted(infix, key=len, reverse=True)))

    def body(self) -> tuple[list[Operand], Scalar]:
        s = self.scanner
        if s.accept("("):
            self._list()
        s.expect("{")
        while (root := self._definition()) is None:
            pass
        if self.listed is not None:
            return self.listed, root
        return self._in_order(root)

    def _list(self) -> None:
        s = self.scanner
        self.listed = []
        while not s.accept(")"):
            if self.listed:
                s.expect(",")
            value = s.value()
            self.listed.append((value, s.index_map() if s.accept("[") else None))

    def _in_order(self, root: Scalar) -> tuple[list[Operand], Scalar]:
        """Operands by first use, which is not always the first place in the text."""
        operands = list(self.operands)
        order = operand_order(root)
        place = {old: new for new, old in enumerate(order)}

        def renumber(node: Scalar) -> Scalar:
            if isinstance(node, Arg):
                return Arg(place[node.index], node.dtype)
            if isinstance(node, Gather):
                return Gather(place[node.operand], node.indices, node.dtype)
            return node

        if order != list(range(len(order))):
            root = rewrite(root, renumber)
        return [operands[i] for i in order], root

    def _definition(self) -> Scalar | None:
        """Read ``t0 = …;``, or the body's result."""
        s = self.scanner
        start = s.position
        match = s.match(_NAME)
        if match and match.group(1) == "t" and s.ahead("=") and not s.ahead("=="):
            s.expect("=")
            self.names[match.group()] = self._expression(";")
            return None
        s.position = start
        return self._expression("}")

    def _expression(self, close: str) -> Scalar:
        s = self.scanner
        stack = [_Frame(close, lambda arguments: arguments[0])]
        while True:
            part = self._operand()
            if isinstance(part, _Frame):
                stack.append(part)
                if not (part.many and s.accept(part.close)):
                    continue
                node = stack.pop().finish([])
            else:
                node = part
            while self._take(stack[-1], node):
                frame = stack.pop()
                node = frame.finish(frame.arguments)
                if not stack:
                    return node

    def _take(self, frame: _Frame, node: Scalar) -> bool:
        """Add an operand to a frame; whether that closes it."""
        s = self.scanner
        frame.operands.append(node)
        if symbol := s.match(self.symbol):
            operator = self.operators[symbol.group()]
            frame.reduce(operator.precedence)
            frame.operators.append(operator)
            return False
        frame.reduce(0)
        frame.arguments.append(frame.operands.pop())
        if frame.many and s.accept(","):
            return False
        if not s.accept(frame.close):
            s.fail(f"an operator{', a comma' if frame.many else ''} or {frame.close!r}")
        return True

    def _operand(self) -> Scalar | _Frame:
        s = self.scanner
        if s.accept("("):
            return _Frame(")", lambda arguments: arguments[0])
        if s.text.startswith("%", s.position):
            start = s.position
            return self._read(s.value(), start)
        if match := s.match(_NAME):
            return self._named(match, match.start())
        if (number := s.number()) is not None:
            return Const(number, s.dtype() if s.accept(":") else default_dtype(number))
        return self._call()

    def _named(self, match: re.Match[str], start: int) -> Scalar | _Frame:
        s = self.scanner
        kind, number = match.group(1), int(match.group(2))
        if kind == "d":
            return Index(number)
        if kind == "t":
            return self.names.get(match.group()) or s.fail("a subexpression that is named before", start)
        if self.listed is None or number >= len(self.listed):
            s.fail("an operand of the list before the body", start)
        value, index_map = self.listed[number]
        if s.accept("{"):
            return _gather(number, value)
        if index_map is None:
            s.fail("an operand with an index map, or indices in braces", start)
        return Arg(number, value.type.dtype)

    def _read(self, value: Value, start: int) -> Scalar | _Frame:
        s = self.scanner
        if s.accept("["):
            operand = value, s.index_map()
            if self.listed is None:
                return Arg(self._number(operand), value.type.dtype)
            if self.listed.count(operand) != 1:
                s.fail("a read that is listed once before the body", start)
            return Arg(self.listed.index(operand), value.type.dtype)
        if s.accept("{"):
            if self.listed is None:
                return _gather(self._number((value, None)), value)
            number = _gathered(self.listed, value)
            return s.fail("a value that is listed once", start) if number is None else _gather(number, value)
        return s.fail("an index map in brackets or indices in braces")

    def _number(self, operand: Operand) -> int:
        return self.operands.setdefault(operand, len(self.operands))

    def _call(self) -> Scalar | _Frame:
        s = self.scanner
        start = s.position
        name = s.word("a scalar: a value, a literal, a loop's index or an op")
        if name in _DTYPES:
            dtype = _DTYPES[name]
            s.expect("(")
            return _Frame(")", lambda arguments: Cast(arguments[0], dtype))
        if name == "dim":
            s.expect("(")
            value = s.dim()
            s.expect(")")
            return DimValue(value)
        if name.startswith("bitcast_") and name[8:] in _DTYPES:
            bits = _DTYPES[name[8:]]
            s.expect("(")
            return _Frame(")", lambda arguments: Bitcast(arguments[0], bits))
        declared = find_scalar_op(name) or s.fail("a scalar op", start)
        s.expect("(")
        return _Frame(")", lambda arguments: self._applied(declared, arguments, start), many=True)

    def _applied(self, op: ScalarOp, arguments: list[Scalar], start: int) -> Scalar:
        if len(arguments) != op.arity:
            self.scanner.fail(f"{op.name} with {op.arity} arguments, not {len(arguments)}", start)
        return _apply(op.name, arguments)


def _apply(name: str, arguments: Sequence[Scalar]) -> Scalar:
    return Apply(name, tuple(arguments), result_dtype(name, arguments[-1].dtype))


def _gather(number: int, value: Value) -> _Frame:
    dtype = value.type.dtype
    return _Frame("}", lambda indices: Gather(number, tuple(indices), dtype), many=True)
