"""Small models in the forms that Qualcomm's compiler takes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def quantised_convolution(extra: str = "", size: int = 16) -> bytes:
    """An int8 convolution ``x`` u8 (1, 8, size, size) -> ``y`` u8 (1, 16, size, size) in QDQ form, with an op
    more behind it."""
    rng = np.random.default_rng(0)
    scales = (rng.random(16) * 0.01 + 0.005).astype(np.float32)
    constants = {
        "x scale": np.float32(0.02),
        "x zero": np.uint8(128),
        "w": rng.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8),
        "w scale": scales,
        "w zero": np.zeros(16, np.int8),
        "b": rng.integers(-1000, 1000, 16).astype(np.int32),
        "b scale": np.float32(0.02) * scales,
        "b zero": np.zeros(16, np.int32),
        "y scale": np.float32(0.2),
        "y zero": np.uint8(128),
    }
    last = "result" if extra else "sums"
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x scale", "x zero"], ["xf"], "x"),
        helper.make_node("DequantizeLinear", ["w", "w scale", "w zero"], ["wf"], "w", axis=0),
        helper.make_node("DequantizeLinear", ["b", "b scale", "b zero"], ["bf"], "b", axis=0),
        helper.make_node("Conv", ["xf", "wf", "bf"], ["sums"], "conv", pads=[1] * 4, kernel_shape=[3, 3]),
        *([helper.make_node(extra, ["sums"], ["result"], "extra")] if extra else []),
        helper.make_node("QuantizeLinear", [last, "y scale", "y zero"], ["y"], "y"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 8, size, size])
    y = helper.make_tensor_value_info("y", TensorProto.UINT8, [1, 16, size, size])
    return model(nodes, [x], [y], constants)


def product() -> bytes:
    """A product of f32 matrices ``x`` (64, 128) -> ``y`` (64, 256), without negative numbers."""
    weights = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["sums"]), helper.make_node("Relu", ["sums"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 128])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 256])
    return model(nodes, [x], [y], {"w": weights})


def model(nodes, inputs, outputs, constants) -> bytes:
    initialisers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initialisers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()
