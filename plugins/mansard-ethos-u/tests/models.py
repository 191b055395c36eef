"""Quantised networks as ONNX models in QDQ form: 8-bit integers between all layers."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper


class Network:
    """A network that is being put together; a tensor is named by what its integers are called."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes, self.constants, self.shape = [], {}, shape
        self.constants |= {"in scale": np.float32(0.02), "in zero": np.uint8(128)}

    def node(self, kind: str, inputs: list[str], **attributes: object) -> str:
        name = f"{kind} {len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def real(self, quantised: str) -> str:
        return self.node("DequantizeLinear", [quantised, f"{quantised} scale", f"{quantised} zero"])

    def quantised(self, real: str, scale: float, zero: int = 128) -> str:
        name = f"q{len(self.nodes)}"
        self.constants |= {f"{name} scale": np.float32(scale), f"{name} zero": np.uint8(zero)}
        self.nodes.append(helper.make_node("QuantizeLinear", [real, f"{name} scale", f"{name} zero"], [name]))
        return name

    def conv(self, x: str, inputs: int, outputs: int, window: int, *, stride=1, groups=1, relu=False) -> str:
        w = f"w{len(self.nodes)}"
        shape = (outputs, inputs // groups, window, window)
        self.constants |= {
            w: self.rng.integers(-127, 128, shape).astype(np.int8),
            f"{w} scale": (self.rng.random(outputs) * 0.004 + 0.002).astype(np.float32),
            f"{w} zero": np.zeros(outputs, np.int8),
            f"{w} bias": self.rng.standard_normal(outputs).astype(np.float32),
        }
        weights = self.node("DequantizeLinear", [w, f"{w} scale", f"{w} zero"], axis=0)
        attributes = {"pads": [window // 2] * 4, "strides": [stride] * 2, "group": groups}
        sums = self.node(
            "Conv", [self.real(x), weights, f"{w} bias"], kernel_shape=[window] * 2, **attributes
        )
        if relu:
            self.constants |= {"low": np.float32(0), "high": np.float32(6)}
            sums = self.node("Clip", [sums, "low", "high"])
        return self.quantised(sums, 6 / 255 if relu else 0.05, 0 if relu else 128)

    def add(self, a: str, b: str) -> str:
        return self.quantised(self.node("Add", [self.real(a), self.real(b)]), 0.08, 120)

    def model(self, output: str) -> bytes:
        initialisers = [numpy_helper.from_array(np.asarray(a), name) for name, a in self.constants.items()]
        x = helper.make_tensor_value_info("in", TensorProto.UINT8, self.shape)
        y = helper.make_tensor_value_info(output, TensorProto.UINT8, None)
        graph = helper.make_graph(self.nodes, "g", [x], [y], initialisers)
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def bottlenecks() -> bytes:
    """A strided convolution and an inverted residual, as MobileNetV2 has them: ``in`` u8 (1, 3, 16, 16)."""
    n = Network((1, 3, 16, 16))
    stem = n.conv("in", 3, 8, 3, stride=2, relu=True)
    wide = n.conv(stem, 8, 24, 1, relu=True)
    deep = n.conv(wide, 24, 24, 3, groups=24, relu=True)
    return n.model(n.add(stem, n.conv(deep, 24, 8, 1)))


def strides() -> bytes:
    """Three convolutions, the second depthwise with strides of four: ``in`` u8 (1, 3, 16, 16)."""
    n = Network((1, 3, 16, 16))
    return n.model(n.conv(n.conv(n.conv("in", 3, 8, 3), 8, 8, 3, stride=4, groups=8), 8, 4, 3))
