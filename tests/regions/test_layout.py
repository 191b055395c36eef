"""Layouts of named graphs: a transpose that changes numbers, too, is no other name for a value."""

from __future__ import annotations

import numpy as np
import onnx

from mansard.dtypes import DType
from mansard.ir.types import Constant, TensorType, Value
from mansard.regions.named import Conv, Encoding, NamedGraph, Transpose
from mansard.regions.onnx import onnx_model


def test_a_transpose_that_decodes_a_convolution_leaves_it_quantised():
    def value(name, shape, dtype):
        return Value(name, TensorType(shape, dtype))

    x, w = value("x", (1, 4, 4, 3), DType.U8), value("w", (2, 1, 1, 3), DType.I8)
    sums, y = value("sums", (1, 4, 4, 2), DType.U8), value("y", (1, 2, 4, 4), DType.F32)
    ops = (
        Conv((x, w), sums, strides=(1, 1), dilations=(1, 1), pads=((0, 0), (0, 0))),
        Transpose((sums,), y, permutation=(0, 3, 1, 2)),
    )
    encodings = {x: Encoding((0.1,), 3), w: Encoding((0.1, 0.2), 0, 0), sums: Encoding((0.5,), 7)}
    constants = {w: Constant.of(np.ones((2, 1, 1, 3), np.int8), "w")}
    model = onnx_model(NamedGraph("g", (x,), (y,), ops, constants, encodings))
    onnx.checker.check_model(model)
    kinds = [node.op_type for node in model.graph.node]
    after = kinds[kinds.index("Conv") + 1 :]
    assert after[:2] == ["QuantizeLinear", "DequantizeLinear"], kinds
