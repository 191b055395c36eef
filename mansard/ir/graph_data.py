"""A Graph as bytes, without the data of its weights."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mansard.errors import ArtifactError
from mansard.ir.graph import Graph, State
from mansard.ir.interpreter.graph import load
from mansard.ir.serialise import Reader, Writer
from mansard.ir.types import Constant, Value
from mansard.ir.verify import verify
from mansard.plan.constraints import ShapeConstraint

INLINE_BYTES = 16 << 20
"""Bytes of constants without a name that a stored graph may include, in all."""


def graph_to_bytes(graph: Graph, names: Mapping[Constant, str]) -> bytes | None:
    """The graph, deflated. Constants in ``names`` are stored by name; the data of others is included.

    None when that would be more than `INLINE_BYTES`.
    """
    writer = Writer(locations=True)
    room = INLINE_BYTES

    def constant(value: Value, held: Constant) -> dict[str, Any] | None:
        nonlocal room
        if held in names:
            return {"key": held.key, "name": names[held]}
        array = np.ascontiguousarray(load(value, held))
        room -= array.nbytes
        if room < 0:
            return None
        return {"key": held.key, "data": base64.b64encode(array.tobytes()).decode()}

    constants = [[writer.value(v), constant(v, c)] for v, c in graph.constants.items()]
    states = [
        [writer.value(s.before), writer.value(s.after), s.initial and constant(s.before, s.initial)]
        for s in graph.states
    ]
    if room < 0:
        return None
    record = {
        "name": graph.name,
        "inputs": [writer.value(v) for v in graph.inputs],
        "outputs": [writer.value(v) for v in graph.outputs],
        "output_names": graph.output_names,
        "constants": constants,
        "states": states,
        "ops": [writer.op(op) for op in graph.ops],
    }
    record |= {"values": writer.values(), "names": [v.name for v in writer.numbers]}
    record["constraints"] = [[writer.dim(c.left), c.relation, writer.dim(c.right)] for c in graph.constraints]
    record["dims"] = writer.contracts()
    return zlib.compress(json.dumps(record, separators=(",", ":")).encode(), 1)


def graph_from_bytes(data: bytes, constants: Mapping[str, Constant]) -> Graph:
    """The opposite of `graph_to_bytes`; ``constants`` are the named ones.

    Raises ArtifactError for data that is no graph, or names a constant that is not given.
    """
    try:
        record = json.loads(zlib.decompress(data))
        reader = Reader(record["dims"], record["values"], record["names"])
        value = reader.values.__getitem__

        def constant(number: int, held: Mapping[str, Any]) -> Constant:
            if "name" in held:
                return constants[held["name"]]
            kind = value(number).type
            shape = [int(d) for d in kind.shape if isinstance(d, int)]
            array = np.frombuffer(base64.b64decode(held["data"]), kind.dtype.numpy).reshape(shape)
            return Constant.of(array, held["key"])

        graph = Graph(
            record["name"],
            tuple(value(i) for i in record["inputs"]),
            tuple(value(i) for i in record["outputs"]),
            tuple(reader.op(op) for op in record["ops"]),
            {value(i): constant(i, held) for i, held in record["constants"]},
            tuple(
                State(value(before), value(after), None if held is None else constant(before, held))
                for before, after, held in record["states"]
            ),
            tuple(record["output_names"]),
            constraints=tuple(
                ShapeConstraint(reader.dim(left), relation, reader.dim(right))
                for left, relation, right in record["constraints"]
            ),
        )
    except (zlib.error, ValueError, KeyError, IndexError, TypeError) as error:
        raise ArtifactError(f"the graph cannot be read: {error!r}") from error
    verify(graph)
    return graph
