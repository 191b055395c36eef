"""The identity of a dispatch: equal layers share one kernel, and equal kernels of other models too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mansard.errors import ArtifactError
from mansard.ir.dispatch import Dispatch
from mansard.ir.serialise import Reader, Writer


def dispatch_key(dispatch: Dispatch) -> str:
    """A text equal for two dispatches exactly when one kernel serves both.

    Values are numbered in order of appearance; names and source locations do not count, ranges of
    dims do.
    """
    return json.dumps(dispatch_to_data(dispatch), separators=(",", ":"))


def dispatch_to_data(dispatch: Dispatch) -> dict[str, Any]:
    """A dispatch as plain data, without names and places."""
    writer = Writer()
    inputs = [writer.value(v) for v in dispatch.inputs]
    outputs = [writer.value(v) for v in dispatch.outputs]
    domain = [writer.dim(d) for d in dispatch.domain]
    packable = sorted(writer.value(v) for v in dispatch.packable)
    in_place = sorted(writer.value(v) for v in dispatch.in_place)
    ops = [writer.op(op) for op in dispatch.ops]
    values = writer.values()
    return {
        "dims": writer.contracts(),
        "values": values,
        "inputs": inputs,
        "outputs": outputs,
        "packable": packable,
        "in_place": in_place,
        "domain": domain,
        "ops": ops,
    }


def dispatch_from_data(data: Mapping[str, Any], name: str) -> Dispatch:
    """The opposite of `dispatch_to_data`. Raises ArtifactError for data that is none."""
    try:
        reader = Reader(data["dims"], data["values"])
        return Dispatch(
            name,
            tuple(reader.op(op) for op in data["ops"]),
            tuple(reader.values[i] for i in data["inputs"]),
            tuple(reader.values[i] for i in data["outputs"]),
            tuple(reader.dim(d) for d in data["domain"]),
            frozenset(reader.values[i] for i in data["packable"]),
            frozenset(reader.values[i] for i in data["in_place"]),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ArtifactError(f"a kernel's source cannot be read: {error!r}") from error
