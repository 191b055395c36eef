"""One op of a StableHLO module, as its rule sees it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import UnsupportedOpError
from mansard.frontends.emission.tensor import Content, Tensor
from mansard.frontends.stablehlo import attributes
from mansard.frontends.stablehlo.entries import Entry, Pieces

_FILE = re.compile(r'"([^"]+)":(\d+):\d+')
_NAME = re.compile(r'loc\("([^"]*)"\(')


class ContentNeededError(UnsupportedOpError):
    """An op's form depends on the content of a tensor that is only known at run time."""


class Node:
    """An op with its operands resolved; ``location`` is its place in the user's source: ``f (net.py:7)``."""

    def __init__(self, op: Any, inputs: Sequence[Entry], location: str = "") -> None:
        self.op, self.inputs, self.location = op, list(inputs), location
        self.name: str = op.name

    # Operands ---------------------------------------------------------------------------------
    def tensor(self, number: int) -> Tensor:
        """An operand as a tensor."""
        entry = self.inputs[number]
        if isinstance(entry, Pieces):
            return entry.joined()
        if not isinstance(entry, Tensor):
            raise self.fail(f"operand {number} is not a tensor")
        return entry

    def tensors(self) -> list[Tensor]:
        """All operands."""
        return [self.tensor(i) for i in range(len(self.inputs))]

    def content(self, number: int) -> Content:
        """The elements of an operand. Raises ContentNeededError where they are computed at run time."""
        known = content_of(self.tensor(number))
        if known is None:
            raise ContentNeededError(
                self.name,
                self.location,
                f"the content of operand {number} must be known when the model is compiled",
            )
        return known

    def dim_list(self, number: int) -> list[DimLike]:
        """The elements of an operand, as dims."""
        flat = self.content(number).reshape(-1)
        return [int(d) if isinstance(d, (int, np.integer)) else d for d in flat]

    # Attributes -------------------------------------------------------------------------------
    def has(self, name: str) -> bool:
        """Whether an attribute is stated."""
        return name in self.op.attributes

    def attribute(self, name: str) -> Any:
        """An attribute of the bindings."""
        return self.op.attributes[name]

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return int(self.attribute(name).value) if self.has(name) else default

    def ints(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """A list of integers."""
        return attributes.ints(self.attribute(name)) if self.has(name) else list(default)

    def word(self, name: str, default: str = "") -> str:
        """An enumeration or a text."""
        return attributes.word(self.attribute(name)) if self.has(name) else default

    def fields(self, name: str) -> dict[str, list[int]]:
        """The fields of a structured attribute; those that are absent are empty."""
        return attributes.fields(self.attribute(name)) if self.has(name) else {}

    def region(self, number: int = 0) -> Any:
        """The only block of a region."""
        return self.op.regions[number].blocks[0]

    # Results ----------------------------------------------------------------------------------
    def dtype(self, result: int = 0) -> DType:
        """The element type of a result."""
        return attributes.element_type(self.op.results[result].type, self.name, self.location)

    def shape(self, result: int = 0) -> tuple[int | None, ...]:
        """The shape of a result, with None for dynamic sizes."""
        return attributes.tensor_shape(self.op.results[result].type)

    def static_shape(self, result: int = 0) -> tuple[int, ...]:
        """The shape of a result. Raises UnsupportedOpError for dynamic sizes."""
        shape = self.shape(result)
        if any(d is None for d in shape):
            raise self.fail("a result of a size that is only known at run time")
        return tuple(d for d in shape if d is not None)

    # Errors -----------------------------------------------------------------------------------
    def fail(self, detail: str) -> UnsupportedOpError:
        """The error for what the rule does not support."""
        return UnsupportedOpError(self.name, self.location, detail)


def content_of(t: Tensor) -> Content | None:
    """The elements of a tensor, where they are known and few or a weight."""
    if t.content is not None:
        return t.content
    if t.splat is not None and all(isinstance(d, int) for d in t.shape):
        return np.full([int(str(d)) for d in t.shape], t.splat, t.dtype.numpy)
    return None if t.constant is None else t.constant.load()


def location_text(location: Any) -> str:
    """A location as ``name (file:line)``, of the innermost place in the user's source, as far as it says."""
    text = str(location)
    named, place = _NAME.search(text), _FILE.search(text)
    name = named.group(1) if named and not named.group(1).startswith("<") else ""
    if place is None:
        plain = re.search(r'"([^"]+)"', text)
        return name or (plain.group(1).rstrip(":") if plain else "")
    where = f"{PurePath(place.group(1)).name}:{place.group(2)}"
    return f"{name} ({where})" if name else where
