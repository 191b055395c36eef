"""Writes nodes, initialisers and names of an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir.graph import fresh_name
from mansard.ir.types import Value
from mansard.regions.named.builder import Array, static
from mansard.regions.named.graph import Encoding, NamedGraph

CONTRIB = "com.microsoft"
"""The domain whose (de)quantisation takes 16-bit integers, which ONNX's own does from opset 21 on."""
TYPES = {
    DType.F64: onnx.TensorProto.DOUBLE, DType.F32: onnx.TensorProto.FLOAT,
    DType.F16: onnx.TensorProto.FLOAT16, DType.BF16: onnx.TensorProto.BFLOAT16,
    DType.I64: onnx.TensorProto.INT64, DType.I32: onnx.TensorProto.INT32,
    DType.I16: onnx.TensorProto.INT16, DType.I8: onnx.TensorProto.INT8,
    DType.U64: onnx.TensorProto.UINT64, DType.U32: onnx.TensorProto.UINT32,
    DType.U16: onnx.TensorProto.UINT16, DType.U8: onnx.TensorProto.UINT8,
    DType.BOOL: onnx.TensorProto.BOOL,
}  # fmt: skip


_OTHER_SIGN = {DType.I8: DType.U8, DType.U8: DType.I8, DType.I16: DType.U16, DType.U16: DType.I16}


class OnnxWriter:
    """Nodes in order. Methods give the name of a result, and take names of operands."""

    def __init__(self, graph: NamedGraph) -> None:
        self.graph = graph
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.domains = {""}
        self._taken = {value.name for value in (*graph.inputs, *graph.outputs)}
        self._names: dict[Value, str] = {value: value.name for value in (*graph.inputs, *graph.outputs)}
        self._literals: dict[object, str] = {}

    # Names ----------------------------------------------------------------------------------
    def name(self, value: Value) -> str:
        """The name of a value as it is stored; a constant becomes an initialiser."""
        if value not in self._names:
            self._names[value] = fresh_name(self._taken, value.name)
        name = self._names[value]
        if value in self.graph.constants and name not in self.initializers:
            array = np.asarray(self.graph.constants[value].load())
            self.initializers[name] = _tensor(array, name)
        return name

    def constant(self, array: Array, name: str = "const") -> str:
        """An initialiser; one for equal arrays."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._literals:
            self._literals[key] = fresh_name(self._taken, name)
            self.initializers[self._literals[key]] = _tensor(array, self._literals[key])
        return self._literals[key]

    def ints(self, values: Sequence[int]) -> str:
        """A list of i64 numbers."""
        return self.constant(np.array(values, np.int64))

    # Nodes ----------------------------------------------------------------------------------
    def node(
        self, kind: str, *inputs: str, output: str | None = None, domain: str = "", **attributes: Any
    ) -> str:
        """A node with one result."""
        result = output or fresh_name(self._taken, kind.lower())
        self.domains.add(domain)
        label = f"{kind}:{result}"
        self.nodes.append(helper.make_node(kind, inputs, [result], label, domain=domain, **attributes))
        return result

    def real(self, value: Value) -> str:
        """The real numbers of a value: dequantised where it has an encoding."""
        encoding = self.graph.encodings.get(value)
        if encoding is None:
            return self.name(value)
        return self._encoded("DequantizeLinear", self.name(value), value.type.dtype, encoding, None)

    def rounded(self, result: str, value: Value) -> str:
        """Real numbers rounded to those that integers of a value stand for."""
        encoding, dtype = self.graph.encodings[value], value.type.dtype
        integers = self._encoded("QuantizeLinear", result, dtype, encoding, None)
        return self._encoded("DequantizeLinear", integers, dtype, encoding, None)

    def stored(self, result: str, value: Value, operand: DType | None = None) -> None:
        """Store real numbers as a value has them: quantised where it has an encoding.

        ``operand`` is the type of the integers that the op reads. Where only their sign is another, nodes of
        their own change it: toolchains compute in integers where both have one type.
        """
        encoding, dtype = self.graph.encodings.get(value), value.type.dtype
        if encoding is not None and operand is not None and _OTHER_SIGN.get(operand) is dtype:
            shift = 1 << (dtype.bits - 1)
            shifted = replace(encoding, zero=encoding.zero + (shift if dtype.is_signed else -shift))
            first = self._encoded("QuantizeLinear", result, operand, shifted, None)
            result = self._encoded("DequantizeLinear", first, operand, shifted, None)
        if encoding is None and self.nodes and result == self.nodes[-1].output[0]:
            self.nodes[-1].output[0] = self.name(value)
        elif encoding is None:
            self.node("Identity", result, output=self.name(value))
        else:
            self._encoded("QuantizeLinear", result, dtype, encoding, self.name(value))

    def _encoded(self, kind: str, name: str, dtype: DType, encoding: Encoding, output: str | None) -> str:
        wide = dtype.bits == 16
        if not wide and dtype not in (DType.I8, DType.U8, DType.I32):
            raise CodegenError(f"ONNX has no quantised numbers of type {dtype.value}")
        shape = () if encoding.axis is None else (len(encoding.scales),)
        scale = self.constant(np.array(encoding.scales, np.float32).reshape(shape), "scale")
        zero = self.constant(np.full(shape, encoding.zero, dtype.numpy), "zero")
        attributes = {} if encoding.axis is None else {"axis": encoding.axis}
        domain = CONTRIB if wide else ""
        return self.node(kind, name, scale, zero, output=output, domain=domain, **attributes)


def value_info(value: Value) -> onnx.ValueInfoProto:
    """Name, type and shape of an input or output."""
    return helper.make_tensor_value_info(value.name, onnx_type(value.type.dtype), static(value.type.shape))


def onnx_type(dtype: DType) -> int:
    """ONNX's number of an element type. Raises CodegenError for one that is not written."""
    if dtype not in TYPES:
        raise CodegenError(f"ONNX models are written without values of type {dtype.value}")
    number: int = TYPES[dtype]
    return number


def _tensor(array: Array, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
