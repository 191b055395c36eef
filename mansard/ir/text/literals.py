"""Names, strings and numbers as text; `mansard.ir.text.scanner` reads them back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import numpy as np

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.types import IndexMap, Value

NAME = re.compile(r"[A-Za-z0-9_.\-]+")

Number = float | int | bool


def quoted(text: str) -> str:
    """``text`` in double quotes, on one line."""
    return json.dumps(text, ensure_ascii=False)


def name_text(name: str) -> str:
    """A name as it is where it is plain, else in quotes."""
    return name if NAME.fullmatch(name) else quoted(name)


def value_text(value: Value) -> str:
    """``%name`` of a value."""
    return f"%{name_text(value.name)}"


def typed(value: Value) -> str:
    """A value with its type."""
    return f"{value_text(value)}: {value.type}"


def number_text(value: Number) -> str:
    """A number or bool so that it is read back as the same Python object."""
    if isinstance(value, np.generic):
        value = value.item()
    return str(value).lower() if isinstance(value, bool) else repr(value)


def default_dtype(value: Number) -> DType:
    """The element type of a literal that states none."""
    if isinstance(value, (bool, np.bool_)):
        return DType.BOOL
    return DType.I64 if isinstance(value, (int, np.integer)) else DType.F32


def list_text(items: Iterable[DimLike]) -> str:
    """Dims or ints in brackets."""
    return "[" + ", ".join(map(str, items)) + "]"


def read_text(value: Value, index_map: IndexMap | None) -> str:
    """An operand read through an index map; the plain value where it is read by gathers only."""
    if index_map is None:
        return value_text(value)
    fill = "" if index_map.fill is None else f" else {number_text(index_map.fill)}"
    return f"{value_text(value)}[{', '.join(map(str, index_map.results))}{fill}]"
