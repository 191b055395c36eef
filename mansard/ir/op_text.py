"""Ops as lines of text, and back; what follows the name is stated by each class (`Op.text`, `Op.read`)."""

from __future__ import annotations

from mansard.ir.ops import OPS, Op, find_op
from mansard.ir.text.literals import quoted, typed
from mansard.ir.text.scanner import Scanner
from mansard.ir.types import Location, Value


def print_op(op: Op, locations: bool = False) -> str:
    """One op as one line; ``locations`` adds where it comes from."""
    results = ", ".join(map(typed, op.outputs))
    text = f"{results} = {op.text()}" if op.outputs else op.text()
    return f"{text}  // {_location_text(op.location)}" if locations and op.location.text else text


def read_op(scanner: Scanner) -> Op:
    """An op with its results, which become known to the scanner's scope."""
    # The results come first in the text, and into scope last: an op does not read its own results.
    before = dict(scanner.scope.values)
    outputs: list[Value] = []
    while scanner.text.startswith("%", scanner.position):
        outputs.append(scanner.definition())
        if not scanner.accept(","):
            scanner.expect("=")
            break
    after, scanner.scope.values = scanner.scope.values, before
    start = scanner.position
    name = scanner.word("an op")
    cls = find_op(name)
    if cls is None:
        scanner.fail(f"an op ({', '.join(sorted(key.lower() for key in OPS))})", start)
    fields = cls.read(scanner, tuple(outputs))
    op = cls(outputs=tuple(outputs), location=_read_location(scanner), **fields)
    scanner.scope.values = after
    return op


def _location_text(location: Location) -> str:
    text = location.text
    plain = text == text.strip() and text.isprintable() and not text.startswith('"')
    return text if plain else quoted(text)


def _read_location(scanner: Scanner) -> Location:
    """What stands after ``//`` at the end of a line."""
    if scanner.accept("//"):
        in_quotes = scanner.text.startswith('"', scanner.position)
        return Location(scanner.string() if in_quotes else scanner.rest())
    scanner.end()
    return Location()
