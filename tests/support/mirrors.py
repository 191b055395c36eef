"""Compares ctypes declarations with the C headers they mirror; every difference is a sentence."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from support.c_declarations import CType, Header

_SCALARS: dict[str, Any] = {
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "bool": ctypes.c_bool,
    "size_t": ctypes.c_size_t,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
}


def structures(module: ModuleType) -> dict[str, Any]:
    """The ctypes structures that a module defines, by the C name in their docstring."""
    mirrors = {}
    for name, cls in inspect.getmembers(module, inspect.isclass):
        if issubclass(cls, ctypes.Structure) and cls.__module__ == module.__name__:
            c_name = (cls.__doc__ or "").partition("``")[2].partition("``")[0]
            assert c_name, f"{name} does not say which structure it mirrors"
            mirrors[c_name] = cls
    return mirrors


def wrong_constants(names: Mapping[str, int], prefix: str, header: Header) -> list[str]:
    """Constants of Python without their like in C: ``names`` by Python name, ``prefix`` is C's."""
    return [
        f"{prefix}{name} is {header.constants.get(prefix + name, 'not there')} in C and {value} in Python"
        for name, value in names.items()
        if header.constants.get(prefix + name) != value
    ]


def missing_enumerators(names: Mapping[str, int], prefix: str, header: Header) -> list[str]:
    """Enumerators of C that Python does not know."""
    return [
        f"{name} of {enumeration} has no constant in Python"
        for enumeration, values in header.enumerations.items()
        for name in values
        if name.removeprefix(prefix) not in names
    ]


def wrong_structures(
    mirrors: Mapping[str, Any], header: Header, *, names: bool = True, known: Mapping[str, Any] | None = None
) -> list[str]:
    """Structures whose members differ in number, order, name (unless told not to look) or type.

    ``known`` are mirrors of other structures that members may point to.
    """
    known = {**(known or {}), **mirrors}
    differences = []
    for c_name, cls in mirrors.items():
        if c_name not in header.structures:
            differences.append(f"there is no structure {c_name} in C")
            continue
        members = header.structures[c_name]
        fields = [field[:2] for field in cls._fields_]
        if len(fields) != len(members):
            differences.append(f"{c_name} has {len(members)} members in C and {len(fields)} in Python")
        for (c_member, c_type), (member, kind) in zip(members.items(), fields, strict=False):
            if names and member != c_member:
                differences.append(f"{c_name}.{c_member} is called {member} in Python")
            if not _fits(kind, c_type, known):
                differences.append(f"{c_name}.{c_member} is {c_type} in C and {kind} in Python")
    return differences


def wrong_functions(
    signatures: Mapping[str, tuple[object, tuple[object, ...]]], header: Header, mirrors: Mapping[str, Any]
) -> list[str]:
    """Functions that C does not have, or with other arguments or another result."""
    differences = []
    for name, (result, arguments) in signatures.items():
        if name not in header.functions:
            differences.append(f"there is no function {name} in C")
            continue
        c_result, c_arguments = header.functions[name]
        if len(arguments) != len(c_arguments):
            differences.append(
                f"{name} takes {len(c_arguments)} arguments in C and {len(arguments)} in Python"
            )
        if not _fits(result, c_result, mirrors, header.enumerations):
            differences.append(f"{name} returns {c_result} in C and {result} in Python")
        differences += [
            f"argument {n} of {name} is {c_type} in C and {kind} in Python"
            for n, (kind, c_type) in enumerate(zip(arguments, c_arguments, strict=False))
            if not _fits(kind, c_type, mirrors, header.enumerations)
        ]
    return differences


def _fits(
    kind: Any, c_type: CType, mirrors: Mapping[str, Any], enumerations: Sequence[str] | Mapping[str, Any] = ()
) -> bool:
    """Whether a ctypes type has the size and the meaning of a C type."""
    if kind is None:
        return c_type == CType("void")
    if c_type.length:
        element = CType(c_type.name, c_type.pointers)
        array = isinstance(kind, type) and issubclass(kind, ctypes.Array)
        return array and kind._length_ == c_type.length and _fits(kind._type_, element, mirrors)
    if kind is ctypes.c_void_p:
        return c_type.pointers > 0
    if kind is ctypes.c_char_p:
        return (c_type.name, c_type.pointers) == ("char", 1)
    if isinstance(kind, type) and issubclass(kind, ctypes._Pointer):
        target = CType(c_type.name, c_type.pointers - 1)
        return c_type.pointers > 0 and not c_type.function and _fits(kind._type_, target, mirrors)
    if c_type.pointers:
        return False
    if c_type.name in mirrors:
        return kind is mirrors[c_type.name]
    return kind is (ctypes.c_int if c_type.name in enumerations else _SCALARS.get(c_type.name))
