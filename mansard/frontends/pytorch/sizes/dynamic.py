"""The user's ``dynamic_shapes``: completed, converted to torch's dims, and matched with the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mansard.arguments import shown
from mansard.dims import INT_MAX, Dim
from mansard.errors import ImportModelError

DimNames = Mapping[tuple[int, int], Any]
"""The user's ``torch.export.Dim`` for (number of the flattened input, axis)."""


STATED_ZERO = "mansard_stated_zero"
"""Attribute of a ``torch.export.Dim`` made of a `Dim` that states ``min=0``. Torch's own dims have that
minimum when the user states none."""


def torch_shapes(dynamic_shapes: Any, bound: Mapping[str, Any]) -> Any:
    """``dynamic_shapes`` as ``torch.export`` requires it: with every input, and with torch's dims only.

    ``bound`` are the example inputs by parameter name; inputs that the user omitted are static.
    """
    if dynamic_shapes is not None and not isinstance(dynamic_shapes, (Mapping, list, tuple)):
        raise ImportModelError(
            f"dynamic_shapes={shown(dynamic_shapes)}: it takes a mapping by input, such as "
            "{'x': {0: mansard.Dim('batch')}}, or a sequence in their order"
        )
    if isinstance(dynamic_shapes, Mapping):
        unknown = [name for name in dynamic_shapes if name not in bound]
        if unknown:
            raise ImportModelError(
                f"dynamic_shapes names {shown(unknown[0])}; the inputs are {', '.join(bound) or 'none'}"
            )
        dynamic_shapes = {name: dynamic_shapes.get(name) for name in bound}
    return _torch_dims(dynamic_shapes, {})


def _torch_dims(spec: Any, known: dict[str, Any]) -> Any:
    """``dynamic_shapes`` with every `mansard.dims.Dim` replaced by a ``torch.export.Dim``.

    A dim of multiples of 16 becomes ``16 * seq_by_16``.
    """
    if isinstance(spec, Mapping):
        return {key: _torch_dims(item, known) for key, item in spec.items()}
    if isinstance(spec, (list, tuple)):
        return type(spec)(_torch_dims(item, known) for item in spec)
    if not isinstance(spec, Dim):
        return spec
    if spec.name not in known:
        m = spec.multiple
        name = spec.name if m == 1 else f"{spec.name}_by_{m}"
        high = None if spec.max >= INT_MAX else spec.max // m
        base = torch.export.Dim(name, min=-(-spec.min // m), max=high)
        setattr(base, STATED_ZERO, spec.min == 0)
        known[spec.name] = base if m == 1 else m * base
    return known[spec.name]


def dims_by_input(bound: Mapping[str, Any], inputs: Any, dynamic_shapes: Any) -> DimNames:
    """The user's named dims by input and axis; ``inputs`` in the order of the program's inputs."""
    if dynamic_shapes is None or len(dynamic_shapes) == 0:
        return {}
    by_tensor: dict[int, Any] = {}
    if isinstance(dynamic_shapes, Mapping):
        for name, value in bound.items():
            _match(value, dynamic_shapes.get(name), by_tensor)
    else:
        for value, spec in zip(bound.values(), dynamic_shapes, strict=False):
            _match(value, spec, by_tensor)
    dims_by_axis = {}
    for number, leaf in enumerate(pytree.tree_leaves(inputs)):
        spec = by_tensor.get(id(leaf)) or {}
        items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        for axis, dim in items:
            if hasattr(dim, "__name__"):  # a Dim or one derived from it, not a hint such as Dim.AUTO
                dims_by_axis[(number, axis % leaf.dim())] = dim
    return dims_by_axis


def _match(value: Any, spec: Any, specs: dict[int, Any]) -> None:
    """Pair each tensor of a nested input with its entry of ``dynamic_shapes``."""
    if spec is None:
        return
    if isinstance(value, torch.Tensor):
        specs[id(value)] = spec
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _match(item, spec.get(key) if isinstance(spec, Mapping) else None, specs)
    elif isinstance(value, (list, tuple)):
        for item, inner in zip(value, spec, strict=False):
            _match(item, inner, specs)
