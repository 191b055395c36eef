"""Quantised PyTorch models: ops of PT2E, exported modules, and integer products in what is compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # defines the ops
import torch.nn.functional as F
from support.frontends.torch_import import check, import_and_check_all

from mansard.compiler import CompileOptions, compile_graph
from mansard.dtypes import DType
from mansard.frontends import import_model
from mansard.ir.interpreter.graph import interpret
from mansard.passes.products.quantised_products import quantised_products

ops: Any = torch.ops.quantized_decomposed
U8, I8 = (0, 255, torch.uint8), (-128, 127, torch.int8)
X = torch.linspace(-4, 4, 96).reshape(2, 3, 4, 4)
SCALES, ZEROS = torch.tensor([0.02, 0.03, 0.05]), torch.tensor([0, 3, -7])


def quantised_and_back(x: torch.Tensor, scale: float, zero: int, kind: Any) -> torch.Tensor:
    q = ops.quantize_per_tensor.default(x, scale, zero, *kind)
    return ops.dequantize_per_tensor.default(q, scale, zero, *kind)


def channels_and_back(x: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    q = ops.quantize_per_channel.default(x, SCALES, zeros, 1, *I8)
    return ops.dequantize_per_channel.default(q, SCALES, zeros, 1, *I8)


def test_ops() -> None:
    functions = {
        "float to uint8": lambda x: (x * 60).clamp(0, 255).to(torch.uint8),
        "u8": lambda x: ops.quantize_per_tensor.default(x, 0.03, 126, *U8),
        "i8": lambda x: ops.quantize_per_tensor.default(x, 0.03, -3, *I8),
        "scale in a tensor": lambda x: ops.quantize_per_tensor.tensor(
            x, torch.tensor(0.03), torch.tensor(5), *I8
        ),
        "there and back": lambda x: quantised_and_back(x, 0.03, 126, U8),
        "channels": lambda x: channels_and_back(x, ZEROS),
    }
    import_and_check_all({name: (function, X) for name, function in functions.items()})


class Net(torch.nn.Module):
    """A convolution, a depthwise one and a linear layer as static quantisation leaves them."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in (("w1", (8, 3, 3, 3)), ("w2", (8, 1, 3, 3)), ("w3", (5, 8))):
            self.register_buffer(name, torch.randint(-128, 128, shape, dtype=torch.int8))
            self.register_buffer(name + "s", torch.rand(shape[0]) / 500)
            self.register_buffer(name + "z", torch.zeros(shape[0], dtype=torch.int64))
        self.bias = torch.nn.Parameter(torch.randn(8))

    def weight(self, name: str) -> torch.Tensor:
        parts = [getattr(self, name + part) for part in ("", "s", "z")]
        return ops.dequantize_per_channel.default(*parts, 0, *I8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = quantised_and_back(x, 0.035, 126, U8)
        x = F.relu6(F.conv2d(x, self.weight("w1"), self.bias, stride=2, padding=1))
        x = F.relu6(F.conv2d(quantised_and_back(x, 0.02, 0, U8), self.weight("w2"), padding=1, groups=8))
        x = quantised_and_back(x, 0.02, 3, U8).mean((2, 3))
        return F.linear(quantised_and_back(x, 0.02, -5, I8), self.weight("w3"))


def test_products_of_a_quantised_model_are_of_integers() -> None:
    model = Net().eval()
    image = torch.randn(1, 3, 12, 12)
    graph = import_model(model, (image,))
    after = quantised_products(graph)
    check(after, model, [image])
    compiled = compile_graph(graph, CompileOptions(cache=False))
    products = [d for d in compiled.plan.decisions if "contraction" in d.ops]
    assert [d.dtype for d in products] == ["u8", "u8", "u8"]
    assert after.ops is not graph.ops and DType.U8 in {v.type.dtype for v in after.values()}


class Dynamic(torch.nn.Module):
    """A linear layer whose input gets a scale for each row while the model runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randint(-128, 128, (6, 32), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(6, 1) / 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127
        q = torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)
        return F.linear(q.float() * scale, self.w.float() * self.scales)


def test_scales_that_are_computed_while_running() -> None:
    model, x = Dynamic().eval(), torch.randn(4, 32)
    graph = import_model(model, (x,))
    check(quantised_products(graph), model, [x])
    decisions = compile_graph(graph, CompileOptions(cache=False)).plan.decisions
    assert [d.dtype for d in decisions if "contraction" in d.ops] == ["u8"]


def test_a_module_that_was_exported_before() -> None:
    # Such a module, and what quantisation makes of one, refuses eval().
    model = Net().eval()
    image = torch.randn(1, 3, 12, 12)
    exported = torch.export.export(model, (image,)).module()

    def refuse(mode: bool = True) -> None:
        raise NotImplementedError("Calling train() or eval() is not supported")

    exported.eval = exported.train = refuse
    graph = import_model(exported, (image,))
    with torch.no_grad():
        expected = model(image).numpy()
    np.testing.assert_allclose(interpret(graph, [image.numpy()])[0], expected, rtol=2e-5, atol=2e-5)


READ = """
import sys
from pathlib import Path
from mansard.frontends.pytorch.export import load_program
print(sum("quantized_decomposed" in str(node.target) for node in load_program(Path(sys.argv[1])).graph.nodes))
"""


def test_a_saved_program_is_read_where_nothing_has_defined_its_ops(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Net().eval(), (torch.randn(1, 3, 12, 12),)), path)
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 11
