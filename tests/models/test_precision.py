"""The precision option: recorded, explained, refused when unknown, and close to the model it rounds."""

import numpy as np
import pytest
import torch
from torch import nn

import mansard
from mansard.errors import CompileError


def block() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 48, bias=False), nn.Softmax(-1)]
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize("rows", [1, 24])
def test_bf16_products_are_close_recorded_and_half_as_large(tmp_path, rows):
    module, x = block(), torch.randn(rows, 64)
    with torch.no_grad():
        expected = module(x)
    sizes = {}
    for precision in ("f32", "bf16"):
        path = tmp_path / f"{precision}.mansard"
        with mansard.compile(module, (x,), devices="cpu", precision=precision) as model:
            assert model.explain().precision == model.plan.info["precision"] == precision
            assert f"precision: {precision}" in str(model.explain())
            model.save(path)
        with mansard.load(path) as model:
            assert model.explain().precision == precision
            sizes[precision] = sum(
                int(np.prod(w.shape)) * w.dtype.itemsize for w in model.plan.weights if len(w.shape) > 1
            )
            error = (model(x) - expected).abs().max() / expected.abs().max()
            assert error < (1e-5 if precision == "f32" else 2e-2)
            assert precision == "f32" or error > 1e-6
    assert sizes["bf16"] * 2 == sizes["f32"]


def test_an_unknown_precision_is_refused():
    with pytest.raises(CompileError, match="'f32' or 'bf16'"):
        mansard.compile(block(), (torch.randn(1, 64),), devices="cpu", precision="int8")


class Quantised(nn.Module):
    """A linear layer on 8-bit integers: round, multiply and sum in integers, scale back."""

    def __init__(self, rows: int, zero: int) -> None:
        super().__init__()
        self.zero = zero
        generator = torch.Generator().manual_seed(rows)
        weight = torch.randint(-128, 128, (48, 64), generator=generator, dtype=torch.int8)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", torch.rand(48, generator=generator) * 0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = torch.clamp(torch.round(x * 40.0), -128, 127).to(torch.int8)
        centred = q.to(torch.int32) - self.zero
        sums = torch.matmul(centred, self.weight.to(torch.int32).t())
        return torch.relu(sums.float() * self.scale)


@pytest.mark.parametrize(("rows", "zero"), [(1, 0), (21, 0), (1, 9), (21, -100)])
def test_quantised_linear_layers_multiply_bytes(rows, zero):
    module, x = Quantised(rows, zero).eval(), torch.randn(rows, 64) * 2
    with mansard.compile(module, (x,), devices="cpu") as model:
        assert [w.dtype.value for w in model.plan.weights if len(w.shape) > 1] == ["i8"]
        torch.testing.assert_close(model(x), module(x))
