"""Reads the declarations of a C header: constants, enumerations, structures, function types and functions.

As much C as the headers of the native core have: no bit fields, no nested structures, no macros in
declarations but those that are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_DROPPED = re.compile(r"\bMN_API\b|__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NOT_IN_TYPES = ("const", "struct", "enum")


@dataclass(frozen=True)
class CType:
    """The type of a member, argument or result. ``pointers`` counts its stars."""

    name: str
    pointers: int = 0
    length: int = 0
    """Elements of an array; 0 when it is none."""
    function: bool = False
    """Whether it is a pointer to a function."""


@dataclass
class Header:
    """What a header declares."""

    constants: dict[str, int] = field(default_factory=dict)
    """``#define`` with a number, and all enumerators."""
    enumerations: dict[str, dict[str, int]] = field(default_factory=dict)
    """Named enumerations: their enumerators in order."""
    structures: dict[str, dict[str, CType]] = field(default_factory=dict)
    function_types: dict[str, tuple[CType, tuple[CType, ...]]] = field(default_factory=dict)
    functions: dict[str, tuple[CType, tuple[CType, ...]]] = field(default_factory=dict)


def parse(text: str) -> Header:
    """The declarations of a header's text."""
    header = Header()
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    for name, value in re.findall(r"^#define (\w+) (.+)$", text, re.M):
        number = _number(value, header.constants)
        if number is not None:
            header.constants[name] = number
    text = _DROPPED.sub(" ", re.sub(r"^#.*$", "", text, flags=re.M))
    for statement in _statements(text):
        _declare(statement, header)
    return header


def _statements(text: str) -> list[str]:
    statements, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if char == ";" and depth == 0:
            statements.append(" ".join(text[start:at].split()))
            start = at + 1
    assert not text[start:].strip(), f"an unfinished declaration: {text[start:].strip()}"
    return statements


def _declare(statement: str, header: Header) -> None:
    if match := re.fullmatch(r"(?:typedef )?enum (\w*) ?\{(.*)\} ?\w*", statement):
        values = _enumerators(match[2], header.constants)
        header.constants |= values
        if match[1]:
            header.enumerations[match[1]] = values
    elif match := re.fullmatch(r"(?:typedef )?struct (\w+) \{(.*)\} ?\w*", statement):
        members = [part for part in match[2].split(";") if part.strip()]
        header.structures[match[1]] = dict(each for member in members for each in _members(member, header))
    elif re.fullmatch(r"typedef struct \w+ \w+", statement):
        pass  # opaque
    elif match := re.fullmatch(r"typedef (.*?)\(\*(\w+)\)\((.*)\)", statement):
        header.function_types[match[2]] = (_type(match[1], header), _arguments(match[3], header))
    elif match := re.fullmatch(r"(.*?)(\w+)\((.*)\)", statement):
        header.functions[match[2]] = (_type(match[1], header), _arguments(match[3], header))
    else:
        raise AssertionError(f"a declaration of a kind not known here: {statement}")


def _enumerators(text: str, constants: dict[str, int]) -> dict[str, int]:
    values: dict[str, int] = {}
    following = 0
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        number = _number(value, {**constants, **values}) if value else following
        assert number is not None, f"the value of {name} is no number: {value}"
        values[name] = number
        following = number + 1
    return values


def _number(text: str, constants: dict[str, int]) -> int | None:
    """The value of a constant expression of numbers, names and shifts; None for anything else."""
    text = text.strip().replace("UINT64_MAX", str(2**64 - 1)).removeprefix("(").removesuffix(")")
    parts = []
    for part in text.split("<<"):
        word = part.strip()
        if word in constants:
            parts.append(constants[word])
        elif re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)[uUlL]*", word):
            parts.append(int(word.rstrip("uUlL"), 0))
        else:
            return None
    return parts[0] << sum(parts[1:])


def _members(text: str, header: Header) -> list[tuple[str, CType]]:
    """The members that one declaration declares: ``uint64_t a, b`` are two."""
    if match := re.fullmatch(r"\s*.*?\(\*(\w+)\)\(.*\)\s*", text):
        return [(match[1], CType("", 1, function=True))]
    first, *others = text.split(",")
    name, kind = _named(first, header)
    return [(name, kind)] + [
        (_WORD.search(other)[0], CType(kind.name, other.count("*"), kind.length))  # type: ignore[index]
        for other in others
    ]


def _named(text: str, header: Header) -> tuple[str, CType]:
    match = re.fullmatch(r"\s*(.*?)(\w+)\s*(?:\[(\w+)\])?\s*", text)
    assert match, f"no declaration: {text}"
    length = _number(match[3], header.constants) if match[3] else 0
    kind = _type(match[1], header)
    return match[2], CType(kind.name, kind.pointers, length or 0, kind.function)


def _arguments(text: str, header: Header) -> tuple[CType, ...]:
    parts = [part.strip() for part in text.split(",")]
    if parts in ([""], ["void"]):
        return ()
    return tuple(_argument(part, header) for part in parts if part != "...")


def _argument(text: str, header: Header) -> CType:
    words = [word for word in _WORD.findall(text.split("[", maxsplit=1)[0]) if word not in _NOT_IN_TYPES]
    if len(words) > 1:
        kind = _named(text, header)[1]
        return CType(kind.name, kind.pointers + bool(kind.length), 0, kind.function)
    return _type(text, header)


def _type(text: str, header: Header) -> CType:
    words = [word for word in _WORD.findall(text) if word not in _NOT_IN_TYPES]
    assert len(words) == 1, f"no type: {text}"
    if words[0] in header.function_types:
        return CType(words[0], 1, function=True)
    return CType(words[0], text.count("*"))
