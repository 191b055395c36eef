"""One network quantised in each of PyTorch's ways, and as ONNX: the same dispatches, of the same integers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the ops
import torch.nn.functional as F
from torch import nn

import mansard
from mansard.compiler import CompileOptions, compile_graph
from mansard.frontends import import_model
from mansard.ir import Graph
from mansard.ir.interpreter.graph import interpret

ops: Any = torch.ops.quantized_decomposed
U8, I8 = (0, 255), (-128, 127)
TYPES = {U8: torch.uint8, I8: torch.int8}


class Plain:
    """Elementary ops, as `examples/quantise.py` has them."""

    @staticmethod
    def values(x: torch.Tensor, scale: float, zero: int, limits: tuple[int, int]) -> torch.Tensor:
        q = torch.clamp(torch.round(x * (1 / scale)) + zero, *limits).to(TYPES[limits])
        return (q.float() - zero) * scale

    @staticmethod
    def weight(w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        along = scales.reshape(-1, *[1] * (w.dim() - 1))
        return torch.clamp(torch.round(w * (1 / along)), *I8).to(torch.int8).float() * along


class Fake:
    """Fake-quantise ops, as training aware of quantisation leaves them."""

    @staticmethod
    def values(x: torch.Tensor, scale: float, zero: int, limits: tuple[int, int]) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, *limits)

    @staticmethod
    def weight(w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_channel_affine(w, scales, torch.zeros_like(scales).int(), 0, *I8)


class FakeOfTensors(Fake):
    """The same with parameters in tensors."""

    @staticmethod
    def values(x: torch.Tensor, scale: float, zero: int, limits: tuple[int, int]) -> torch.Tensor:
        parameters = torch.tensor([scale]), torch.tensor([zero], dtype=torch.int32)
        return torch.fake_quantize_per_tensor_affine(x, *parameters, *limits)


class Decomposed:
    """The ops of PT2E."""

    @staticmethod
    def values(x: torch.Tensor, scale: float, zero: int, limits: tuple[int, int]) -> torch.Tensor:
        how = (scale, zero, *limits, TYPES[limits])
        return ops.dequantize_per_tensor.default(ops.quantize_per_tensor.default(x, *how), *how)

    @staticmethod
    def weight(w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        how = (scales, torch.zeros_like(scales).long(), 0, *I8, torch.int8)
        return ops.dequantize_per_channel.default(ops.quantize_per_channel.default(w, *how), *how)


class Net(nn.Module):
    """A stem with padding of its own, an inverted residual block, and a classifier."""

    def __init__(self, way: Any, limits: tuple[int, int]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.way, self.limits, self.low = way, limits, limits[0]
        for name, shape in (("a", (16, 3, 3, 3)), ("b", (32, 16, 1, 1)), ("c", (32, 1, 3, 3)),
                            ("d", (16, 32, 1, 1)), ("e", (10, 16))):  # fmt: skip
            w = nn.Parameter(torch.randn(shape) * (2 / np.prod(shape[1:])) ** 0.5)
            self.register_parameter(name, w)
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(shape[0]) / 10))
            self.register_buffer(f"{name}_scales", w.detach().flatten(1).abs().amax(1) / 127)

    def layer(self, x: torch.Tensor, name: str, **how: Any) -> torch.Tensor:
        weight = self.way.weight(getattr(self, name), getattr(self, f"{name}_scales"))
        product = F.linear if weight.dim() == 2 else F.conv2d
        return product(x, weight, getattr(self, f"{name}_bias"), **how)

    def at(self, x: torch.Tensor, scale: float, zero: int) -> torch.Tensor:
        return self.way.values(x, scale, zero + self.low, self.limits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.at(F.pad(x, (0, 1, 0, 1)), 0.03, 124)
        x = self.at(F.relu6(self.layer(x, "a", stride=2)), 0.0236, 0)
        y = self.at(F.pad(F.relu6(self.layer(x, "b")), (1, 1, 1, 1)), 0.02, 0)
        y = self.at(F.relu6(self.layer(y, "c", groups=32)), 0.015, 0)
        y = self.at(self.layer(y, "d"), 0.04, 130)
        x = self.at(x + y, 0.05, 90)
        return self.at(self.layer(self.at(x.mean((2, 3)), 0.03, 70), "e"), STEP, 128)


STEP = 0.04
IMAGE = torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(2)).clamp(-3, 3)


def dispatches(model: mansard.Model) -> list[tuple[str, bool]]:
    """The type that each dispatch computes in, and whether it is a product."""
    return [(row.dtype, "contraction" in row.ops) for row in model.explain().rows]


def onnx_model(limits: tuple[int, int], folder: Path) -> mansard.Model:
    path = folder / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is the one that writes QuantizeLinear
        torch.onnx.export(Net(Fake, limits).eval(), (IMAGE,), str(path), dynamo=False, opset_version=17)
    return mansard.compile(path, devices="cpu")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: Any) -> Callable[..., tuple[list[tuple[str, bool]], torch.Tensor]]:
    """By the limits of a byte: the dispatches of the ONNX file, and what PyTorch computes."""

    @cache
    def of_limits(limits: tuple[int, int]) -> tuple[list[tuple[str, bool]], torch.Tensor]:
        with torch.no_grad():
            expected = Net(Fake, limits).eval()(IMAGE)
        return dispatches(onnx_model(limits, tmp_path_factory.mktemp("onnx"))), expected

    return of_limits


@cache
def imported(way: Any, limits: tuple[int, int]) -> Graph:
    return import_model(Net(way, limits).eval(), (IMAGE,))


@pytest.mark.parametrize(
    ("way", "limits"),
    [
        (Plain, U8),
        (Fake, U8),
        (FakeOfTensors, U8),
        (Decomposed, U8),
        pytest.param(Decomposed, I8, marks=pytest.mark.slow),  # those of u8; codes of tokens are signed
    ],
    ids=["plain", "fake", "fake, parameters in tensors", "PT2E, u8", "PT2E, i8"],
)
def test_the_same_dispatches_as_onnx(way: Any, limits: tuple[int, int], reference: Any) -> None:
    of_onnx, expected = reference(limits)
    graph = imported(way, limits)
    model = mansard.compile(graph, devices="cpu")
    assert dispatches(model) == of_onnx
    assert len(of_onnx) == 7 and sum(product for _, product in of_onnx) == 5
    interpreted = interpret(graph, [IMAGE.numpy()])[0]
    found = np.asarray(model(IMAGE))
    assert np.abs(found - interpreted).max() <= 1.01 * STEP
    assert np.abs(found - expected.numpy()).max() <= 1.01 * STEP
    assert expected.abs().max() > 10 * STEP


def test_weights_that_a_model_rounds_are_stored_in_bytes() -> None:
    compiled = compile_graph(imported(Fake, U8), CompileOptions(cache=False))
    stored = sum(array().nbytes for _, array in compiled.weights)
    assert stored < 6 * 1024  # of 2,000 weights, in panels, and scales and shifts


def test_the_product_of_stored_bytes_is_of_bytes() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return torch._int_mm(x.repeat(4, 1), w)

    x, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((8, 64), (64, 16)))
    model = mansard.compile(Model(), example_inputs=(x, w), devices="cpu")
    assert [dtype for dtype, product in dispatches(model) if product] == ["i8"]
    assert np.array_equal(np.asarray(model(x, w)), torch._int_mm(x.repeat(4, 1), w).numpy())


class Dynamic(nn.Module):
    """A linear layer as torchao's dynamic quantisation makes it: a scale for each token, and signed codes
    moved up by 128, because unsigned ones are multiplied faster."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.randint(-128, 128, (48, 64), dtype=torch.int8))
        self.scales = nn.Buffer(torch.rand(48) / 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
        scale = (torch.maximum(-low, high) / 127.5).clamp(min=1e-7)
        q = torch.clamp(torch.round(x * (1 / scale)), -128, 127).to(torch.int8)
        moved = (q.to(torch.int32) + 128).to(torch.uint8).to(torch.int32)
        total = torch.mm(moved, self.weight.t().to(torch.int32)) - 128 * self.weight.sum(1, dtype=torch.int32)
        return total * scale * self.scales


def test_codes_of_tokens_are_multiplied_as_unsigned_bytes() -> None:
    model, x = Dynamic().eval(), torch.randn(20, 64)
    compiled = mansard.compile(model, example_inputs=(x,), devices="cpu")
    assert [dtype for dtype, product in dispatches(compiled) if product] == ["u8"]
    np.testing.assert_allclose(np.asarray(compiled(x)), model(x).numpy(), rtol=1e-5, atol=1e-5)
