"""The table of structured ops; `register_op` adds to it, from inside the package and from outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from mansard.errors import CompileError
from mansard.ir.ops.base import Op

AnyOp = TypeVar("AnyOp", bound=type[Op])

_OPS: dict[str, type[Op]] = {}

OPS: Mapping[str, type[Op]] = MappingProxyType(_OPS)
"""Op classes by class name."""


def register_op(cls: AnyOp) -> AnyOp:
    """Add an op class to the table: a decorator. Raises CompileError for a class that cannot be one."""
    if problem := _problem(cls):
        raise CompileError(f"op {cls.__name__!r}: {problem}")
    _OPS[cls.__name__] = cls
    return cls


def find_op(name: str) -> type[Op] | None:
    """The class of an op by its name in the text form, if there is one."""
    return next((cls for key, cls in _OPS.items() if key.lower() == name), None)


def _problem(cls: type[Op]) -> str:
    """Why a class is not accepted; empty where it is."""
    if not issubclass(cls, Op) or not dataclasses.is_dataclass(cls):
        return "it is no dataclass derived from Op"
    if find_op(cls.__name__.lower()) is not None:
        return "an op of this name is declared already"
    if cls.verify is Op.verify:
        return "it states no rules (verify)"
    if cls.text is Op.text:
        stated = {name for attribute in cls.attributes for name in attribute.fields}
        if unstated := set(cls.attribute_fields()) - stated:
            return f"its text does not state {', '.join(sorted(unstated))}"
    return ""
