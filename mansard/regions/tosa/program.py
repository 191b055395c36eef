"""A TOSA program as plain data: what a serialiser makes a flatbuffer of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.errors import CodegenError
from mansard.regions.named import NamedOp

Array = npt.NDArray[Any]

NUMPY = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT48": np.dtype(np.int64),
    "SHAPE": np.dtype(np.int64),
}
"""TOSA's element types and NumPy's; an array of 8-bit unsigned integers is its bytes as INT8."""


class NoTosaError(CodegenError):
    """A named op has no form in integer TOSA. ``op`` is the op, ``reason`` why."""

    def __init__(self, op: NamedOp, reason: str) -> None:
        self.op, self.reason = op, reason
        super().__init__(f"{op.name}: {reason}")


@dataclass(frozen=True)
class TosaOp:
    """One operator: its kind, operands and result by name, and its attributes by the specification's names
    (enumerators as their names)."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class TosaProgram:
    """Operators in execution order over named tensors, as TOSA 1.0 defines them.

    ``tensors`` gives element type and shape of inputs and results, ``constants`` the element type and data of
    the others. Unsigned 8-bit inputs and outputs are INT8 tensors of the same bytes.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    constants: Mapping[str, tuple[str, Array]]
    ops: tuple[TosaOp, ...]
    labels: Mapping[str, str]
    """For each tensor that an operator makes, the named op that it is a part of, and where that is from in
    the model (``Conv module.stem``), for listings."""

    def digest(self) -> str:
        """A hash that equal programs have."""
        plain = self.plain()
        digest = hashlib.sha256()
        for name, (dtype, array) in plain.pop("constants").items():
            digest.update(f"{name} {dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        digest.update(json.dumps(plain).encode())
        return digest.hexdigest()

    def plain(self) -> dict[str, Any]:
        """The program as lists, dicts, texts and arrays, for another process."""
        return {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "tensors": {name: (dtype, list(shape)) for name, (dtype, shape) in self.tensors.items()},
            "constants": dict(self.constants),
            "ops": [(op.kind, list(op.inputs), op.output, dict(op.attributes)) for op in self.ops],
        }
