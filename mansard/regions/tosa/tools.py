"""TOSA's serialiser and reference model (``tosa-tools``), for the environment of a worker that has them.

Imports nothing of Mansard. Programs are those of `mansard.regions.tosa.TosaProgram.plain`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tosa_reference_model
import tosa_serializer as serializer

_ENUMS = {
    "acc_type": serializer.DType,
    "rounding_mode": serializer.RoundingMode,
    "nan_mode": serializer.NanPropagationMode,
    "mode": serializer.ResizeMode,
}
_NUMPY = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32}
_TITLES = {"MATMUL": "MatMul"}


def serialise(program: dict[str, Any]) -> bytes:
    """The flatbuffer of a program, of TOSA 1.0."""
    graph = serializer.TosaSerializer("", targetMajor=1, targetMinor=0, targetPatch=0, targetDraft=False)
    block = graph.currRegion.currBasicBlock
    types = serializer.DType.__members__
    for name, (dtype, shape) in program["tensors"].items():
        block.addTensor(name, shape, types[dtype])
    for name in program["inputs"]:
        block.addInput(name)
    for name, (dtype, values) in program["constants"].items():
        graph.addConst(list(values.shape), types[dtype], values, name=name)
    for kind, inputs, output, attributes in program["ops"]:
        record = serializer.TosaSerializerAttribute()
        title = _TITLES.get(kind) or "".join(part.capitalize() for part in kind.split("_"))
        dtype = program["tensors"][output][0]
        getattr(record, f"{title}Attribute")(**{k: _attribute(k, v, dtype) for k, v in attributes.items()})
        block.addOperator(serializer.Op.__members__[kind], inputs, [output], record)
    for name in program["outputs"]:
        block.addOutput(name)
    return bytes(graph.serialize())


def _attribute(name: str, value: Any, dtype: str) -> Any:
    if name in _ENUMS:
        return _ENUMS[name].__members__[value]
    if name in ("min_val", "max_val"):
        return list(np.array([value], _NUMPY[dtype]).tobytes())
    return value


def load(flatbuffer: Any) -> bytes:
    """A program for `run`."""
    return bytes(flatbuffer)


def run(flatbuffer: bytes, inputs: list[Any], params: list[int]) -> list[Any]:
    """The outputs of a program by TOSA's reference model. Programs have no parameters."""
    outputs, status = tosa_reference_model.run(flatbuffer, inputs)
    if status != tosa_reference_model.GraphStatus.TOSA_VALID:
        raise RuntimeError(f"the reference model ends with {status}")
    return list(outputs)
