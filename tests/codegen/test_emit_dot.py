"""The dot and prefetch instructions: on this CPU, on targets without the instructions, and as assembly."""

import numpy as np
import pytest
from support.kernels.pairs import pairs
from support.kernels.runner import Machine

from mansard.codegen.kernel import KernelBuilder, KType
from mansard.codegen.kernel.verify import verify
from mansard.codegen.llvm import module
from mansard.codegen.llvm import target as cpu_target
from mansard.dtypes import DType
from mansard.errors import CodegenError

RNG = np.random.default_rng(5)
BF16, F32, I8, U8, I16, I32 = DType.BF16, DType.F32, DType.I8, DType.U8, DType.I16, DType.I32
QUADS = [(I8, I8, I32), (U8, I8, I32), (I8, U8, I32), (U8, U8, I32)]
PAIRS = [(BF16, BF16, F32), (U8, I8, I16), (I8, U8, I16), (I16, I16, I32)]


def kernel(a, b, out, lanes, steps=3):
    """``steps`` dots one after another over two buffers, into a third that holds the first sums."""
    group = out.bits // a.bits
    builder = KernelBuilder("dot", [(a, False), (b, False), (out, True)], 0)
    x, y, z = builder.bindings
    total = builder.load(z, builder.idx(0), lanes)
    width = group * lanes
    with builder.for_(0, steps * width, width, inits=(total,)) as loop:
        builder.prefetch(x, builder.add(loop.index, builder.idx(1 << 20)))
        left, right = (builder.load(m, loop.index, width) for m in (x, y))
        loop.yield_(builder.dot(left, right, loop.carried[0]))
    builder.store(z, builder.idx(0), loop.results[0])
    return builder.build()


def values(dtype, size, out):
    """Random numbers, extremes among them; of bytes whose sums are i16, such as these hold."""
    if dtype is BF16:
        return RNG.standard_normal(size).astype(BF16.numpy)
    info = np.iinfo(dtype.numpy)
    if out is I16:
        return RNG.integers(max(info.min, -20), min(info.max, 256), size, dtype=dtype.numpy, endpoint=True)
    edges = np.array([info.min, info.max], dtype.numpy)
    return np.where(
        RNG.random(size) < 0.3,
        RNG.choice(edges, size),
        RNG.integers(info.min, info.max, size, dtype=dtype.numpy, endpoint=True),
    )


def host_targets():
    """This CPU, and the same without the instructions, one group after another."""
    features = cpu_target.parse("cpu").features
    targets = ["cpu"]
    for missing in ("avx512bf16", "avx512vnni", "avxvnni", "avx512f", "avx2", "i8mm", "dotprod", "bf16"):
        if missing in features:
            targets.append(f"{targets[-1] if targets[-1] != 'cpu' else 'cpu:host'},-{missing}")
    return targets


@pytest.mark.parametrize("target", host_targets())
@pairs("lanes", [2, 4, 8, 16, 24], "a, b, out", [*QUADS, *PAIRS])
def test_dot_sums_products_of_pairs_and_quads(target, a, b, out, lanes):
    group = out.bits // a.bits
    size = 3 * group * lanes
    x, y = values(a, size, out), values(b, size, out)
    if out is I16:  # of three steps a lane has six products, of up to 255 * 20
        x, y = (np.minimum(v, 20) if d is I8 else v for v, d in ((x, a), (y, b)))
    first = RNG.integers(-1000, 1000, lanes).astype(out.numpy)
    result = first.copy()
    Machine(target).run(kernel(a, b, out, lanes), [x, y, result])
    wide = np.float64 if a is BF16 else np.int64
    products = (x.astype(wide) * y.astype(wide)).reshape(3, lanes, group).sum((0, 2)) + first
    if a is BF16:
        np.testing.assert_allclose(result, products, rtol=1e-6, atol=1e-4)
    else:
        np.testing.assert_array_equal(result, products.astype(out.numpy))


@pytest.mark.parametrize(
    ("target", "a", "b", "out", "instruction"),
    [
        ("cpu:znver4", BF16, BF16, F32, "vdpbf16ps"),
        ("cpu:znver4", U8, I8, I32, "vpdpbusd"),
        ("cpu:znver4", I8, I8, I32, "vpdpbusd"),
        ("cpu:alderlake", I8, U8, I32, "vpdpbusd"),
        ("cpu:x86-64-v3", I8, I8, I32, "vpmaddwd"),
        ("cpu:x86-64-v3", U8, I8, I16, "vpmaddubsw"),
        ("cpu:x86-64-v2", I8, U8, I16, "pmaddubsw"),
        ("cpu:x86-64-v3", I16, I16, I32, "vpmaddwd"),
        ("cpu:x86-64-v3", BF16, BF16, F32, "vfmadd"),
        ("cpu:neoverse-v1", BF16, BF16, F32, "bfdot"),
        ("cpu:neoverse-v1", U8, I8, I32, "usdot"),
        ("cpu:cortex-a76", I8, I8, I32, "sdot"),
        ("cpu:cortex-a76", U8, U8, I32, "udot"),
        ("cpu:cortex-a76", U8, I8, I32, "sdot"),
        ("cpu:cortex-a76", BF16, BF16, F32, "fmla"),
    ],
)
def test_dot_uses_the_instruction_of_the_target(target, a, b, out, instruction):
    parsed = cpu_target.parse(target)
    emitted = module.emit([kernel(a, b, out, parsed.vector_bits // out.bits)], parsed)
    text = module.assembly(emitted, parsed)
    assert instruction in text
    assert "prf" in text or "prefetch" in text


@pytest.mark.parametrize(
    ("a", "b", "c", "lanes", "message"),
    [
        (BF16, BF16, I32, (8, 8, 4), "dot takes"),
        (DType.F16, DType.F16, F32, (8, 8, 4), "dot takes"),
        (I8, BF16, I32, (16, 8, 4), "dot takes"),
        (U8, U8, I16, (8, 8, 4), "dot takes"),
        (I8, U8, I32, (16, 8, 4), "lanes do not match"),
        (I8, U8, I16, (16, 16, 4), "lanes do not match"),
        (BF16, BF16, F32, (2, 2, 1), "single lane"),
    ],
)
def test_operands_that_do_not_fit_are_errors(a, b, c, lanes, message):
    builder = KernelBuilder("bad", [], 0)
    left, right, total = (
        builder.const(0, dtype, count) for dtype, count in zip((a, b, c), lanes, strict=True)
    )
    builder.dot(left, right, total)
    with pytest.raises(CodegenError, match=message):
        verify(builder.build())


def test_a_dot_keeps_the_accumulators_type():
    builder = KernelBuilder("bad", [], 0)
    a, b, c = (builder.const(0, dtype, n) for dtype, n in ((I8, 16), (I8, 16), (I32, 4)))
    builder.inst("dot", (a, b, c), KType(F32, 4))
    with pytest.raises(CodegenError, match="accumulator"):
        verify(builder.build())


def test_there_is_no_dot_for_a_gpu():
    from mansard.drivers.vulkan.compiler import BACKEND as VULKAN

    with pytest.raises(CodegenError, match="no SPIR-V for instruction"):
        VULKAN.compile([kernel(BF16, BF16, F32, 4)], VULKAN.parse_target("vulkan"))
