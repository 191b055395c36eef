"""The identity of a dispatch: equal layers share one kernel, and equal kernels of other models too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mansard.errors import ArtifactError
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Op
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
    constants = sorted(writer.value(v) for v in dispatch.constants)
    ops = [writer.op(op) for op in dispatch.ops]
    parts = [_part_to_data(writer, part, dispatch) for part in dispatch.parts]
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
        **({"constants": constants} if constants else {}),
        **({"parts": parts} if parts else {}),
    }


def _part_to_data(writer: Writer, part: Dispatch, whole: Dispatch) -> dict[str, Any]:
    """One of the dispatches that another consists of: which of its ops are its own."""
    return {
        "ops": [whole.ops.index(op) for op in part.ops],
        "inputs": [writer.value(v) for v in part.inputs],
        "outputs": [writer.value(v) for v in part.outputs],
        "in_place": sorted(writer.value(v) for v in part.in_place),
        "domain": [writer.dim(d) for d in part.domain],
    }


def dispatch_from_data(data: Mapping[str, Any], name: str) -> Dispatch:
    """The opposite of `dispatch_to_data`. Raises ArtifactError for data that is none."""
    try:
        reader = Reader(data["dims"], data["values"])
        ops = tuple(reader.op(op) for op in data["ops"])
        return Dispatch(
            name,
            ops,
            tuple(reader.values[i] for i in data["inputs"]),
            tuple(reader.values[i] for i in data["outputs"]),
            tuple(reader.dim(d) for d in data["domain"]),
            frozenset(reader.values[i] for i in data["packable"]),
            frozenset(reader.values[i] for i in data["in_place"]),
            frozenset(reader.values[i] for i in data.get("constants", ())),
            parts=tuple(_part_from_data(reader, part, ops) for part in data.get("parts", ())),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ArtifactError(f"a kernel's source cannot be read: {error!r}") from error


def _part_from_data(reader: Reader, data: Mapping[str, Any], ops: Sequence[Op]) -> Dispatch:
    return Dispatch(
        "part",
        tuple(ops[i] for i in data["ops"]),
        tuple(reader.values[i] for i in data["inputs"]),
        tuple(reader.values[i] for i in data["outputs"]),
        tuple(reader.dim(d) for d in data["domain"]),
        in_place=frozenset(reader.values[i] for i in data["in_place"]),
    )
