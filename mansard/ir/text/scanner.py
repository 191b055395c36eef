"""A cursor over one line of graph text, and the small parts every line is made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.errors import ArtifactError, GraphSyntaxError
from mansard.ir.text.literals import NAME, Number
from mansard.ir.types import IndexMap, Linear, TensorType, Value
from mansard.python_syntax import parse_literal

_SPACE = re.compile(r"[ \t\r]*")
_WORD = re.compile(r"[A-Za-z_]\w*")
_INTEGER = re.compile(r"-?\d+")
_NUMBER = re.compile(r"(true|false|-?inf|-?nan|-?\d+(\.\d*)?(e[+-]?\d+)?)(?!\w)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_EXTENT = re.compile(r"(\d+)x")
_LOOP = re.compile(r"d(\d+)(?!\w)")


@dataclass
class Scope:
    """What the lines before have defined."""

    dims: dict[str, Dim] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)


class Scanner:
    """Reads one line from left to right; every failure names the line, the column and what was expected."""

    def __init__(self, text: str, line: int, scope: Scope) -> None:
        self.text, self.line, self.scope = text, line, scope
        self.position = 0
        self._skip()

    # Failing --------------------------------------------------------------------------------
    def fail(self, expected: str, position: int | None = None) -> NoReturn:
        """Raise GraphSyntaxError at the cursor, or at another position of the line."""
        at = self.position if position is None else position
        rest = self.text[at:].strip()
        shown = repr(rest if len(rest) <= 24 else rest[:24] + "…") if rest else "the end of the line"
        raise GraphSyntaxError(self.line, at + 1, expected, shown)

    # Text -----------------------------------------------------------------------------------
    def _skip(self) -> None:
        match = _SPACE.match(self.text, self.position)
        assert match is not None
        self.position = match.end()

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Read ``pattern``, if it comes next, and the space after it."""
        match = pattern.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
            self._skip()
        return match

    def ahead(self, literal: str) -> bool:
        """Whether ``literal`` comes next; a word only where it is the whole word."""
        end = self.position + len(literal)
        if not self.text.startswith(literal, self.position):
            return False
        return not (literal[-1].isalnum() and re.match(r"\w", self.text[end : end + 1]))

    def accept(self, literal: str) -> bool:
        """Read ``literal`` if it comes next."""
        if not self.ahead(literal):
            return False
        self.position += len(literal)
        self._skip()
        return True

    def expect(self, literal: str) -> None:
        """Read ``literal``, which must come next."""
        if not self.accept(literal):
            self.fail(repr(literal))

    def rest(self) -> str:
        """Everything up to the end of the line."""
        text = self.text[self.position :].rstrip()
        self.position = len(self.text)
        return text

    @property
    def done(self) -> bool:
        """Whether the line is read to its end."""
        return self.position == len(self.text)

    def end(self) -> None:
        """Fail unless the line is read to its end."""
        if not self.done:
            self.fail("the end of the line")

    def word(self, expected: str) -> str:
        """An identifier."""
        match = self.match(_WORD)
        return match.group() if match else self.fail(expected)

    def one_of(self, words: Sequence[str]) -> str | None:
        """One of the words, if one comes next."""
        return next((w for w in words if self.accept(w)), None)

    # Literals -------------------------------------------------------------------------------
    def string(self, expected: str = "a quoted text") -> str:
        """A text in single or double quotes."""
        start = self.position
        match = self.match(_STRING)
        if match is None:
            self.fail(expected)
        try:
            return str(parse_literal(match.group()))
        except (SyntaxError, ValueError):
            self.fail(expected, start)

    def name(self, expected: str) -> str:
        """A plain name, or one in quotes."""
        match = self.match(NAME)
        return match.group() if match else self.string(expected)

    def integer(self, expected: str = "an integer") -> int:
        """An int."""
        match = self.match(_INTEGER)
        return int(match.group()) if match else self.fail(expected)

    def number(self) -> Number | None:
        """A literal, if one comes next."""
        match = self.match(_NUMBER)
        if match is None:
            return None
        text = match.group()
        if text in ("true", "false"):
            return text == "true"
        return int(text) if _INTEGER.fullmatch(text) else float(text)

    def literal(self) -> Number:
        """A literal, which must come next."""
        value = self.number()
        return self.fail("a number, true or false") if value is None else value

    # Types and dims -------------------------------------------------------------------------
    def dtype(self) -> DType:
        """An element type."""
        start = self.position
        text = self.word("an element type")
        try:
            return DType(text)
        except ValueError:
            self.fail(f"an element type ({', '.join(d.value for d in DType)})", start)

    def type(self) -> TensorType:
        """A tensor type such as ``4x[s]xf32``."""
        shape: list[DimLike] = []
        while True:
            if self.accept("["):
                shape.append(self.dim())
                self.expect("]")
                if not self.text.startswith("x", self.position):
                    self.fail("'x' and the next dim or the element type")
                self.position += 1
            elif match := self.match(_EXTENT):
                shape.append(int(match.group(1)))
            else:
                return TensorType(tuple(shape), self.dtype())

    def dim(self, ends: str = ",|])}:;") -> DimLike:
        """An int or a dim expression, which ends before one of ``ends`` outside parentheses."""
        start, depth = self.position, 0
        while self.position < len(self.text) and (depth or self.text[self.position] not in ends):
            depth += (self.text[self.position] == "(") - (self.text[self.position] == ")")
            self.position += 1
        try:
            return dims.parse(self.text[start : self.position].strip(), self.scope.dims)
        except ArtifactError:
            known = ", ".join(sorted(self.scope.dims)) or "none is declared"
            self.fail(f"an int or an expression over the declared dims ({known})", start)

    def dim_list(self) -> tuple[DimLike, ...]:
        """Dims in brackets."""
        items: list[DimLike] = []
        self.expect("[")
        while not self.accept("]"):
            if items:
                self.expect(",")
            items.append(self.dim())
        return tuple(items)

    # Values and index maps ------------------------------------------------------------------
    def value_name(self) -> str:
        """``%name`` of a value."""
        if not self.text.startswith("%", self.position):
            self.fail("a value such as %x")
        self.position += 1
        return self.name("the name of a value")

    def value(self) -> Value:
        """A value that is defined above."""
        start = self.position
        name = self.value_name()
        if name not in self.scope.values:
            self.fail("a value that is defined above", start)
        return self.scope.values[name]

    def definition(self) -> Value:
        """``%name: type``: a new value."""
        start = self.position
        name = self.value_name()
        if name in self.scope.values:
            self.fail("a name that no other value has", start)
        self.expect(":")
        self.scope.values[name] = value = Value(name, self.type())
        return value

    def index_map(self) -> IndexMap:
        """What stands in brackets after a value; the opening one is read already."""
        results: list[Linear] = []
        fill: Number | None = None
        while not self.accept("]"):
            if self.accept("else"):
                fill = self.literal()
                self.expect("]")
                break
            if results:
                self.expect(",")
            results.append(self._linear())
        return IndexMap(tuple(results), fill)

    def _linear(self) -> Linear:
        result = Linear()
        while True:
            result = result.plus(self._term())
            if not self.accept("+"):
                return result

    def _term(self) -> Linear:
        if match := self.match(_LOOP):
            return Linear.dim(int(match.group(1)))
        if not self.accept("("):
            return Linear((), self.integer("an index such as d0, (2)*d1 or 3"))
        value = self.dim()
        self.expect(")")
        if not self.accept("*"):
            return Linear((), value)
        loop = self.match(_LOOP)
        return Linear.dim(int(loop.group(1)), value) if loop else self.fail("a loop such as d0")
