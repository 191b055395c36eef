"""The attributes of structured ops in text: each declared once, printed and parsed from that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mansard.ir.text.literals import list_text, number_text
from mansard.ir.text.scanner import Scanner


class Attribute(Protocol):
    """A part of an op's line after its operands."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the op that the part states."""

    def text(self, op: Any) -> str:
        """The part for an op; empty where it has none."""

    def read(self, scanner: Scanner) -> dict[str, Any]:
        """The op's fields that the next part of a line states."""


@dataclass(frozen=True)
class Kind:
    """How the values of a `Keyword` are printed and parsed."""

    text: Callable[[Any], str]
    read: Callable[[Scanner], Any]


def _integers(scanner: Scanner) -> tuple[int, ...]:
    start = scanner.position
    items = scanner.dim_list()
    if not all(isinstance(item, int) for item in items):
        scanner.fail("ints in brackets", start)
    return tuple(item for item in items if isinstance(item, int))


INTEGER = Kind(str, Scanner.integer)
NUMBER = Kind(number_text, Scanner.literal)
DIMS = Kind(list_text, Scanner.dim_list)
INTEGERS = Kind(list_text, _integers)


@dataclass(frozen=True)
class Keyword:
    """``word value``; left out where an optional field is None."""

    word: str
    kind: Kind
    optional: bool = False
    field: str = ""

    @property
    def fields(self) -> tuple[str, ...]:  # noqa: D102  (see Attribute)
        return (self.field or self.word,)

    def text(self, op: Any) -> str:  # noqa: D102  (see Attribute)
        value = getattr(op, self.field or self.word)
        return "" if value is None else f"{self.word} {self.kind.text(value)}"

    def read(self, scanner: Scanner) -> dict[str, Any]:  # noqa: D102
        if self.optional and not scanner.ahead(self.word):
            return {}
        scanner.expect(self.word)
        return {self.field or self.word: self.kind.read(scanner)}


@dataclass(frozen=True)
class Flag:
    """A word that stands for one value of a bool field."""

    word: str
    field: str = ""
    value: bool = True

    @property
    def fields(self) -> tuple[str, ...]:  # noqa: D102
        return (self.field or self.word,)

    def text(self, op: Any) -> str:  # noqa: D102  (see Attribute)
        return self.word if getattr(op, self.field or self.word) is self.value else ""

    def read(self, scanner: Scanner) -> dict[str, Any]:  # noqa: D102
        return {self.field or self.word: self.value if scanner.accept(self.word) else not self.value}


@dataclass(frozen=True)
class Choice:
    """One word of several."""

    field: str
    words: Sequence[str]
    optional: bool = False

    @property
    def fields(self) -> tuple[str, ...]:  # noqa: D102
        return (self.field,)

    def text(self, op: Any) -> str:  # noqa: D102  (see Attribute)
        return getattr(op, self.field) or ""

    def read(self, scanner: Scanner) -> dict[str, Any]:  # noqa: D102
        word = scanner.one_of(self.words)
        if word is None and not self.optional:
            scanner.fail(f"one of {', '.join(self.words)}")
        return {self.field: word}


@dataclass(frozen=True)
class Text:
    """A quoted text."""

    field: str

    @property
    def fields(self) -> tuple[str, ...]:  # noqa: D102
        return (self.field,)

    def text(self, op: Any) -> str:  # noqa: D102  (see Attribute)
        return repr(getattr(op, self.field))

    def read(self, scanner: Scanner) -> dict[str, Any]:  # noqa: D102
        return {self.field: scanner.string()}
