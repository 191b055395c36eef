"""The results of a call in the structure that the framework's model returns."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mansard.errors import MansardError
from mansard.plan.interface import Structure, class_name
from mansard.runtime.memory.tensors import Array, to_torch


class Record(OrderedDict[str, Any]):
    """A result with named fields whose class is not there: a model that was saved with results of a class of
    its framework, and runs without that. Fields are items, attributes, and by number."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the result has no field {name!r}; it has {', '.join(self)}") from None

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)

    def to_tuple(self) -> tuple[Any, ...]:
        """The fields in order."""
        return tuple(self.values())


Build = Callable[[Sequence[Array], bool], Any]
"""From the arrays of a call, and whether they become tensors of PyTorch, to the result."""


def result_builder(structure: Structure | None) -> Build:
    """What gives a call's arrays the structure of the model's result: without one a single array as it is,
    and several as a tuple."""
    if structure is None or (structure.kind == "tensor" and structure.number == 0 and not structure.sizes):
        return _flat

    def build(arrays: Sequence[Array], torch: bool) -> Any:
        return _build(structure, [to_torch(a) for a in arrays] if torch else arrays, torch)

    return build


def _flat(arrays: Sequence[Array], torch: bool) -> Any:
    values = tuple(to_torch(array) for array in arrays) if torch else tuple(arrays)
    return values[0] if len(values) == 1 else values


def _build(structure: Structure, values: Sequence[Any], torch: bool) -> Any:
    kind = structure.kind
    if kind == "tensor":
        return _sized(values[structure.number], structure, values)
    if kind == "number":
        return values[structure.number].item()
    if kind == "constant":
        return json.loads(structure.value)
    parts = [_build(child, values, torch) for child in structure.children]
    if kind == "tuple":
        return tuple(parts)
    if kind == "list":
        return parts
    if kind == "dict":
        return {json.loads(key): part for key, part in zip(structure.keys, parts, strict=True)}
    if kind == "record":
        return _record(structure, parts)
    return _object(structure, parts, torch)


def _sized(value: Any, structure: Structure, values: Sequence[Any]) -> Any:
    """The part of an output that has elements: its other sizes are among the outputs."""
    if not structure.sizes:
        return value
    counts = {axis: int(values[number].item()) for axis, number in structure.sizes}
    return value[tuple(slice(counts.get(axis)) for axis in range(len(value.shape)))]


def _record(structure: Structure, parts: Sequence[Any]) -> Any:
    fields = dict(zip(structure.keys, parts, strict=True))
    cls = _loaded_class(structure.type)
    if cls is None or not is_record(cls):
        return Record(fields)
    try:
        return cls(**fields)
    except Exception as error:
        raise MansardError(
            f"the result cannot be put into a {structure.type}: {error}; its fields are {', '.join(fields)}"
        ) from error


def is_record(cls: type) -> bool:
    """Whether instances only hold the fields that they are made of: a named tuple, a dataclass, a mapping."""
    named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return named_tuple or dataclasses.is_dataclass(cls) or issubclass(cls, Mapping)


def _object(structure: Structure, parts: Sequence[Any], torch: bool) -> Any:
    """An object of a class that PyTorch can put together; otherwise its parts, as a tuple."""
    cls = _loaded_class(structure.type)
    if cls is None or not torch:
        return tuple(parts)
    from torch.utils import _pytree as pytree

    from mansard.torch_caches import register_caches

    register_caches()
    handler = pytree.SUPPORTED_NODES.get(cls)
    return tuple(parts) if handler is None else handler.unflatten_fn(parts, json.loads(structure.value))


def _loaded_class(name: str) -> Any:
    """The class of that name if its module is imported: a file must not decide what is imported."""
    module, _, qualified = name.partition(":")
    value: Any = sys.modules.get(module)
    for part in qualified.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) and class_name(value) == name else None
