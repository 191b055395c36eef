"""Ops, values and dims as plain data for JSON, and back.

The coding follows the dataclasses of the IR: an op is its class's name and its fields. Values are
numbered, so that two ops that differ only in names give equal data. Nothing but the classes of the IR
can be built from the data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mansard import dims
from mansard.dims import Dim, DimLike, Expr
from mansard.dtypes import DType
from mansard.errors import ArtifactError
from mansard.ir.ops import OPS, Op
from mansard.ir.scalar import NODES, Apply, Scalar, children, walk
from mansard.ir.scalar_ops import find_scalar_op, scalar_op
from mansard.ir.types import IndexMap, Linear, Location, TensorType, Value

_SCALARS: dict[str, type] = {cls.__name__: cls for cls in NODES}


class Writer:
    """Encodes ops; numbers values by first appearance and collects the dims they use."""

    def __init__(self, locations: bool = False) -> None:
        self.numbers: dict[Value, int] = {}
        self.dims: dict[str, Dim] = {}
        self._locations = locations

    def value(self, value: Value) -> int:
        """The number of a value."""
        return self.numbers.setdefault(value, len(self.numbers))

    def values(self) -> list[list[Any]]:
        """Element type and shape of every value so far, by number."""
        return [[v.type.dtype.value, [self.dim(d) for d in v.type.shape]] for v in self.numbers]

    def dim(self, value: DimLike) -> int | str:
        """An int, or the text of an expression."""
        if isinstance(value, Expr):
            self.dims.update({s.name: s for s in value.symbols()})
            return str(value)
        return int(value)

    def contracts(self) -> list[list[Any]]:
        """Name, bounds and divisor of every dim so far."""
        return [[d.name, d.min, d.max, d.multiple] for _, d in sorted(self.dims.items())]

    def op(self, op: Op) -> dict[str, Any]:
        """An op as data."""
        record: dict[str, Any] = {"op": type(op).__name__}
        if OPS.get(record["op"]) is not type(op):
            raise ArtifactError(f"no data form for ops of class {type(op).__name__}")
        record["in"] = [self.value(v) for v in op.inputs]
        record["out"] = [self.value(v) for v in op.outputs]
        for name in op.attribute_fields():
            record[name] = self._field(getattr(op, name))
        if self._locations and op.location.text:
            record["at"] = op.location.text
        return record

    def _field(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return {"float": str(value)} if not math.isfinite(value) else value
        if isinstance(value, Expr):
            return {"dim": self.dim(value)}
        if isinstance(value, DType):
            return {"dtype": value.value}
        if isinstance(value, tuple):
            return [self._field(item) for item in value]
        if isinstance(value, Linear):
            return {"linear": [[[d, self.dim(c)] for d, c in value.terms], self.dim(value.offset)]}
        if isinstance(value, IndexMap):
            fill = {} if value.fill is None else {"fill": self._field(value.fill)}
            return {"map": [self._field(r) for r in value.results], **fill}
        if type(value).__name__ in _SCALARS:
            return {"body": self._body(value)}
        raise ArtifactError(f"no data form for {type(value).__name__}")

    def _body(self, root: Scalar) -> list[Any]:
        """Nodes, operands before users, each with the places of its operands: shared nodes stay shared."""
        places: dict[int, int] = {}
        nodes: list[Any] = []
        for node in walk(root):
            kids = children(node)
            fields = {
                f.name: self._field(getattr(node, f.name))
                for f in dataclasses.fields(node)
                if f.name not in ("arg", "args", "indices")
            }
            if isinstance(node, Apply) and (revision := scalar_op(node.op).revision):
                fields["revision"] = revision
            places[id(node)] = len(nodes)
            nodes.append([type(node).__name__, [places[id(k)] for k in kids], fields])
        return nodes


class Reader:
    """Decodes what a `Writer` made. Raises ArtifactError for anything else."""

    def __init__(
        self,
        contracts: Sequence[Sequence[Any]],
        values: Sequence[Sequence[Any]],
        names: Sequence[str] | None = None,
    ) -> None:
        self.dims: dict[str, Dim] = {c[0]: Dim(c[0], int(c[1]), int(c[2]), int(c[3])) for c in contracts}
        self._parsed: dict[str, DimLike] = {}
        self._built: dict[str, Any] = {}
        self.values = [
            Value(names[i] if names else f"v{i}", TensorType(tuple(self.dim(d) for d in shape), DType(dtype)))
            for i, (dtype, shape) in enumerate(values)
        ]

    def dim(self, data: Any) -> DimLike:
        """An int or an expression."""
        if type(data) is int:
            return data
        if type(data) is not str:
            raise ArtifactError(f"{data!r} is not a dim")
        if data not in self._parsed:
            self._parsed[data] = dims.parse(data, self.dims)
        return self._parsed[data]

    def op(self, record: Mapping[str, Any]) -> Op:
        """An op from its data."""
        cls = OPS.get(record.get("op", ""))
        if cls is None:
            raise ArtifactError(f"unknown op {record.get('op')!r}")
        fields = {k: self._field(v) for k, v in record.items() if k not in ("op", "in", "out", "at")}
        if unknown := fields.keys() - set(cls.attribute_fields()):
            raise ArtifactError(f"{cls.__name__} has no field {', '.join(sorted(unknown))}")
        inputs = tuple(self.values[i] for i in record["in"])
        outputs = tuple(self.values[i] for i in record["out"])
        return cls(inputs, outputs, location=Location(str(record.get("at", ""))), **fields)

    def _field(self, data: Any) -> Any:
        if isinstance(data, list):
            return tuple(self._field(item) for item in data)
        if not isinstance(data, dict):
            return data
        # Equal layers have equal maps and bodies: one object serves them all.
        text = repr(data)
        if text not in self._built:
            self._built[text] = self._tagged(data)
        return self._built[text]

    def _tagged(self, data: Mapping[str, Any]) -> Any:
        if "float" in data:
            return float(data["float"])
        if "dim" in data:
            return self.dim(data["dim"])
        if "dtype" in data:
            return DType(data["dtype"])
        if "linear" in data:
            terms, offset = data["linear"]
            return Linear(tuple((int(d), self.dim(c)) for d, c in terms), self.dim(offset))
        if "map" in data:
            return IndexMap(tuple(self._field(r) for r in data["map"]), self._field(data.get("fill")))
        if "body" in data:
            return self._body(data["body"])
        raise ArtifactError(f"unknown data {sorted(data)}")

    def _body(self, nodes: Sequence[Any]) -> Scalar:
        built: list[Scalar] = []
        for name, kids, fields in nodes:
            if name not in _SCALARS:
                raise ArtifactError(f"unknown scalar {name!r}")
            values = {key: self._field(item) for key, item in fields.items()}
            if name == "Apply":
                _check_revision(values["op"], values.pop("revision", ""))
            operands = tuple(built[k] for k in kids)
            if operands or name in ("Apply", "Gather"):
                key = {"Apply": "args", "Gather": "indices"}.get(name, "arg")
                values[key] = operands if key != "arg" else operands[0]
            built.append(_SCALARS[name](**values))
        return built[-1]


def _check_revision(name: str, revision: str) -> None:
    """An op from outside may be absent here, or compute something else than when the data was written."""
    op = find_scalar_op(name)
    if op is None or op.revision != revision:
        here = "not declared" if op is None else f"of revision {op.revision!r}"
        raise ArtifactError(f"scalar op {name!r} of revision {revision!r} is {here} here")
