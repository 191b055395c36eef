"""Nests of containers around inputs and outputs, as the `Structure` that calls are taken apart by."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from mansard.plan.interface import Structure, class_name

PLAIN = (bool, int, float, str, type(None))


class NoFormError(Exception):
    """A nest has a container that no `Structure` describes."""


def structure_of(value: Any) -> Structure:
    """The structure of a nest whose leaves are numbers of inputs or outputs. Raises NoFormError."""
    if isinstance(value, int):
        return Structure("tensor", value)
    if value is None:
        return Structure("constant", value="null")
    cls = type(value)
    if cls in (tuple, list):
        return Structure(cls.__name__, children=tuple(map(structure_of, value)))
    if isinstance(value, dict) and all(isinstance(key, PLAIN) for key in value):
        keys = tuple(json.dumps(key) for key in value)
        return Structure("dict", keys=keys, children=tuple(map(structure_of, value.values())))
    fields = getattr(value, "_fields", None)
    if fields is None and dataclasses.is_dataclass(value):
        fields = tuple(field.name for field in dataclasses.fields(value))
    if fields is None:
        raise NoFormError
    parts = tuple(structure_of(getattr(value, name)) for name in fields)
    return Structure("record", keys=tuple(fields), children=parts, type=class_name(cls))
