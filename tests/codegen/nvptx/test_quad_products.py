"""Products by matrix units for the invocations of a subgroup: what they add up, and their PTX."""

import numpy as np
from support.kernels.emulator import run

from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.kernel.quad_products import SUMS, diagonal, float12_pairs, quad_products
from mansard.codegen.kernel.verify import verify
from mansard.codegen.nvptx.persistent import body
from mansard.dtypes import DType

BF16, F32, I32 = DType.BF16, DType.F32, DType.I32
RNG = np.random.default_rng(8)
SUBGROUP = 32


def kernel(*, packed):
    """Each subgroup's product of its weights with its part of a vector; weights are pairs of bf16, or floats
    of 12 bits."""
    weights = [(DType.U8, False), (DType.U8, False)] if packed else [(BF16, False), (BF16, False)]
    b = KernelBuilder("products", [(BF16, False), *weights, (F32, True)], 0, workgroup=(64, 1, 1), index=I32)
    b.subgroup = SUBGROUP
    number, lane = b.local_id(0), b.subgroup_place("subgroup_lane")
    place = b.mul(number, b.idx(8))
    x = [b.extract(b.load_words(b.bindings[0], place, 4), at) for at in range(4)]
    if packed:
        low = b.load_words(b.bindings[2], b.mul(number, b.idx(4)), 1)
        words = float12_pairs(b, b.load_words(b.bindings[1], place, 2), low)
    else:
        words = b.load_words(b.bindings[1], place, 4)
    held = [b.extract(words, at) for at in range(4)]
    zero = b.const(0.0, F32, SUMS)
    first, second = (quad_products(b, zero, x[half::2], held) for half in range(2))
    columns = [b.add(b.extract(first, i), b.extract(second, 2 + i)) for i in range(2)]
    total = b.subgroup_reduce("add", diagonal(b, lane, *columns))
    with b.if_(b.compare("eq", lane, b.idx(0))):
        b.store(b.bindings[3], b.subgroup_place("subgroup_id"), total)
    built = b.build()
    verify(built)
    return built


def test_products_of_pairs_of_bf16():
    x, weights = (RNG.standard_normal((2, 256)).astype(BF16.numpy) for _ in range(2))
    out = np.zeros(2, np.float32)
    run(kernel(packed=False), [x, weights, weights, out], (), (1, 1, 1), SUBGROUP)
    expected = (x.astype(np.float32) * weights.astype(np.float32)).sum(1)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_products_of_floats_of_12_bits():
    x = RNG.standard_normal((2, 256)).astype(BF16.numpy)
    high = RNG.integers(0, 256, (2, 256), np.uint8)
    nibbles = RNG.integers(0, 16, (2, 256), np.uint8)
    low = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    code = high.astype(np.int64) << 3 | nibbles & 7
    weights = np.where(nibbles >> 3, -1.0, 1.0) * np.ldexp(1 + (code & 127) / 128, (code >> 7) - 15)
    out = np.zeros(2, np.float32)
    run(kernel(packed=True), [x, high, low, out], (), (1, 1, 1), SUBGROUP)
    expected = (x.astype(np.float64) * weights).sum(1)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_ptx():
    """One instruction for each product; a pair of numbers takes two permutations of bytes."""
    for packed in (False, True):
        text = body(kernel(packed=packed)).text
        assert text.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == 2
        assert text.count("prmt.b32") == (8 if packed else 0)
