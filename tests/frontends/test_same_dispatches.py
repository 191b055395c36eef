"""A model that several frameworks state becomes the same dispatches."""

import functools

import numpy as np
import pytest
from onnx import parser

import mansard

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(5)
F = torch.nn.functional


def kinds(model, inputs=None, **options):
    graph = mansard.lower(model, inputs, stop_after="fuse", **options)
    return [d.name.rstrip("_0123456789") for d in graph.dispatches]


class Upsampled(torch.nn.Module):
    """A convolution of an image that is twice as large."""

    def __init__(self):
        super().__init__()
        self.narrow = torch.nn.Conv2d(16, 8, 1, bias=False)

    def forward(self, x):
        return self.narrow(F.interpolate(x.exp(), scale_factor=2))


def test_upsampling_is_one_gather_whatever_states_it():
    onnx = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        up (float[1, 16, 8, 8] x) => (float[1, 8, 16, 16] y)
        <float[8, 16, 1, 1] w, float[4] scales = {1, 1, 2, 2}>
        {
            e = Exp(x)
            u = Resize <mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">
                (e, , scales)
            y = Conv(u, w)
        }
        """
    )
    onnx.graph.input.extend([v for v in onnx.graph.value_info if v.name == "w"])
    x = torch.randn(2, 16, 8, 8)
    open_sizes = {"x": {0: mansard.Dim("b", 1, 4), 2: mansard.Dim("h", 2, 16)}}
    known = kinds(Upsampled(), (x[:1],))
    assert known == kinds(Upsampled(), (x,), dynamic_shapes=open_sizes) == ["map", "map", "contraction"]
    assert kinds(onnx, constants={"w": RNG.standard_normal((8, 16, 1, 1)).astype(np.float32)}) == known


def test_a_depthwise_convolution_of_jax_reads_its_padding_itself():
    jax = pytest.importorskip("jax", reason="install mansard[jax]")

    def depthwise(weight, x):
        return jax.lax.conv_general_dilated(
            x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=16
        )

    weight = RNG.standard_normal((3, 3, 1, 16)).astype(np.float32)
    assert kinds(functools.partial(depthwise, weight), (np.zeros((1, 8, 8, 16), np.float32),)) == [
        "contraction"
    ]


class Masked(torch.nn.Module):
    """Attention to the keys that a mask keeps, between maps."""

    def forward(self, q, mask):
        return F.scaled_dot_product_attention(q.exp(), q.sin(), q.cos(), attn_mask=mask).exp()


def test_masked_attention_is_one_kernel_where_it_is_spelled_out():
    # As torch.onnx writes it: both factors scaled, a float mask, 0 for NaN.
    onnx = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        attend (float[2, 4, 40, 16] q, bool[2, 1, 1, 40] mask) => (float[2, 4, 40, 16] y)
        <float half = {0.5}, float zero = {0.0}, float low = {-3.4028235e38}>
        {
            a = Exp(q)
            b = Sin(q)
            c = Cos(q)
            t = Transpose <perm = [0, 1, 3, 2]> (b)
            a_scaled = Mul(a, half)
            t_scaled = Mul(t, half)
            added = Where(mask, zero, low)
            scores = MatMul(a_scaled, t_scaled)
            masked = Add(scores, added)
            shares = Softmax <axis = -1> (masked)
            missing = IsNaN(shares)
            weights = Where(missing, zero, shares)
            result = MatMul(weights, c)
            y = Exp(result)
        }
        """
    )
    q, mask = torch.randn(2, 4, 40, 16), torch.ones(2, 1, 1, 40, dtype=torch.bool)
    assert kinds(onnx) == kinds(Masked(), (q, mask)) == ["map", "map", "map", "attention"]
