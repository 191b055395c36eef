"""Scalar bodies from text (`mansard.ir.text.body_printer`), by operator precedence.

Open parentheses are kept on a stack of our own: bodies may be deeper than Python's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    rewrite,
)
from mansard.ir.scalar_ops import ScalarOp, find_scalar_op, result_dtype, scalar_ops
from mansard.ir.text.literals import default_dtype
from mansard.ir.text.operands import Operand, gathered_operand, operand_order
from mansard.ir.text.scanner import Scanner
from mansard.ir.types import Value

_NAME = re.compile(r"(t|d|in)(\d+)(?![\w.])")
_DTYPES = {d.value: d for d in DType}


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
            number = gathered_operand(self.listed, value)
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
