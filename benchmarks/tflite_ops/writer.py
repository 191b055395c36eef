"""Small ``.tflite`` models, made with the schema's own writer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

Array = np.ndarray[Any, Any]
TYPES = {
    "float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7, "complex64": 8,
    "int8": 9, "float64": 10, "uint64": 12, "uint32": 15, "uint16": 16, "int4": 17,
}  # fmt: skip
NEWEST = {"BROADCAST_TO": 2}


class Writer:
    """Builds a model of one or more subgraphs, tensor by tensor and operator by operator."""

    def __init__(self) -> None:
        self.buffers = [schema.BufferT()]
        self.codes: list[Any] = []
        self.subgraphs: list[Any] = []
        self.signatures: list[Any] = []
        self.begin()

    def begin(self) -> int:
        """Begin another subgraph; returns its number."""
        graph = schema.SubGraphT()
        graph.tensors, graph.operators, graph.inputs, graph.outputs = [], [], [], []
        self.subgraphs.append(graph)
        self.graph = graph
        return len(self.subgraphs) - 1

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        *,
        data: Array | bytes | None = None,
        scale: float | Sequence[float] | None = None,
        zero: int | Sequence[int] = 0,
        axis: int = 0,
        signature: Sequence[int] | None = None,
        variable: bool = False,
        name: str = "",
    ) -> int:
        """A tensor, constant where it has data; -1 in the signature is a size that calls choose."""
        t = schema.TensorT()
        t.shape, t.type, t.name = list(shape), TYPES[dtype], name or f"t{len(self.graph.tensors)}"
        t.hasRank, t.isVariable = True, variable
        t.shapeSignature = None if signature is None else list(signature)
        if scale is not None:
            q = schema.QuantizationParametersT()
            q.scale = [float(s) for s in np.atleast_1d(scale)]
            q.zeroPoint = [int(z) for z in np.broadcast_to(zero, len(q.scale))]
            q.quantizedDimension = axis
            t.quantization = q
        if data is not None:
            buffer = schema.BufferT()
            raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
            buffer.data = np.frombuffer(raw, np.uint8)
            t.buffer = len(self.buffers)
            self.buffers.append(buffer)
        self.graph.tensors.append(t)
        return len(self.graph.tensors) - 1

    def constant(self, array: Array, **keywords: Any) -> int:
        """A constant of an array."""
        return self.tensor(array.shape, array.dtype.name, data=array, **keywords)

    def input(self, shape: Sequence[int], dtype: str = "float32", **keywords: Any) -> int:
        """An input."""
        index = self.tensor(shape, dtype, name=keywords.pop("name", f"x{len(self.graph.inputs)}"), **keywords)
        self.graph.inputs.append(index)
        return index

    def op(
        self, op: str, inputs: Sequence[int], outputs: Sequence[int], *, custom: bytes = b"", **options: Any
    ) -> None:
        """An operator with options by the schema's names; unknown names are custom operators."""
        o = schema.OperatorT()
        builtin = getattr(schema.BuiltinOperator, op, None)
        o.opcodeIndex = self._code(op, builtin)
        o.inputs, o.outputs = list(inputs), list(outputs)
        if builtin is None:
            o.customOptions = list(custom)
        kind = options.pop("table", None) or _options_of(op, options)
        if kind:
            table = getattr(schema, f"{kind}T")()
            for key, value in options.items():
                field = _camel(key)
                assert hasattr(table, field), (kind, field)
                setattr(table, field, value)
            number = getattr(schema.BuiltinOptions, kind, None)
            if number is None:
                o.builtinOptions2Type, o.builtinOptions2 = getattr(schema.BuiltinOptions2, kind), table
            else:
                o.builtinOptionsType, o.builtinOptions = number, table
        self.graph.operators.append(o)

    def _code(self, op: str, builtin: int | None) -> int:
        code = schema.OperatorCodeT()
        code.builtinCode = schema.BuiltinOperator.CUSTOM if builtin is None else builtin
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.customCode = op if builtin is None else None
        code.version = NEWEST.get(op, 1)
        self.codes.append(code)
        return len(self.codes) - 1

    def outputs(self, *tensors: int) -> None:
        """The results of the subgraph."""
        self.graph.outputs = list(tensors)

    def signature(self, key: str, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        """Names of the current subgraph's inputs and outputs."""
        s = schema.SignatureDefT()
        s.signatureKey, s.subgraphIndex = key, len(self.subgraphs) - 1
        s.inputs, s.outputs = ([_named(n, i) for n, i in side.items()] for side in (inputs, outputs))
        self.signatures.append(s)

    def bytes(self) -> bytes:
        """The file."""
        model = schema.ModelT()
        model.version, model.description = 3, "a model of a test"
        model.operatorCodes, model.subgraphs, model.buffers = self.codes, self.subgraphs, self.buffers
        model.signatureDefs = self.signatures
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _named(name: str, tensor: int) -> Any:
    pair = schema.TensorMapT()
    pair.name, pair.tensorIndex = name, tensor
    return pair


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


_TABLES = {
    "CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions", "CONV_3D": "Conv3DOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions", "MAX_POOL_2D": "Pool2DOptions", "L2_POOL_2D": "Pool2DOptions",
    "L2_NORMALIZATION": "L2NormOptions", "SUM": "ReducerOptions", "MEAN": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions", "REDUCE_MIN": "ReducerOptions", "REDUCE_PROD": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions", "REDUCE_ALL": "ReducerOptions", "TOPK_V2": "TopKV2Options",
    "BATCH_MATMUL": "BatchMatMulOptions", "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions", "CONV_3D_TRANSPOSE": "Conv3DOptions", "PADV2": "PadV2Options",
    "SPACE_TO_BATCH_ND": "SpaceToBatchNDOptions", "BATCH_TO_SPACE_ND": "BatchToSpaceNDOptions",
    "ATAN2": "ATan2Options", "RFFT2D": "Rfft2dOptions", "BIDIRECTIONAL_SEQUENCE_LSTM":
    "BidirectionalSequenceLSTMOptions", "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTMOptions",
    "LSTM": "LSTMOptions", "SVDF": "SVDFOptions", "RNN": "RNNOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions", "RELU": "", "RELU6": "", "RELU_N1_TO_1": "",
    "BIDIRECTIONAL_SEQUENCE_RNN": "BidirectionalSequenceRNNOptions",
    "ARG_MAX": "ArgMaxOptions", "ARG_MIN": "ArgMinOptions",
    "STABLEHLO_COMPOSITE": "StableHLOCompositeOptions",
}  # fmt: skip


def _options_of(op: str, options: Mapping[str, Any]) -> str:
    """The table of an operator's options."""
    if op in _TABLES:
        return _TABLES[op]
    name = "".join(word.capitalize() for word in re.split("_", op)) + "Options"
    if hasattr(schema, f"{name}T"):
        return name
    assert not options, f"no table of options for {op}"
    return ""


def single(
    op: str,
    inputs: Sequence[tuple[Any, ...]],
    outputs: Sequence[tuple[Any, ...]],
    build: Callable[[Writer], Sequence[int]] | None = None,
    **options: Any,
) -> bytes:
    """A model of one operator: inputs are ``(shape, dtype, scale, zero)`` or constant arrays."""
    w = Writer()
    operands = [
        w.constant(spec) if isinstance(spec, np.ndarray) else w.input(*spec[:2], **_quantised(spec))
        for spec in inputs
    ]
    operands += list(build(w)) if build is not None else []
    results = [w.tensor(*spec[:2], **_quantised(spec)) for spec in outputs]
    w.op(op, operands, results, **options)
    w.outputs(*results)
    return w.bytes()


def _quantised(spec: tuple[Any, ...]) -> dict[str, Any]:
    return {"scale": spec[2], "zero": spec[3]} if len(spec) > 3 else {}
