"""Memory read as words, and the numbers in them, on a Vulkan device."""

import ml_dtypes
import numpy as np
import pytest
from support.kernels.runner import Machine, require_cpu

from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.kernel.verify import verify
from mansard.dtypes import DType
from mansard.errors import CodegenError

RNG = np.random.default_rng(3)
KINDS = (DType.F16, DType.BF16, DType.I8, DType.U8)


@pytest.fixture
def gpu():
    from mansard.hal import registry

    if not any(i.driver == "vulkan" and i.supported for i in registry.devices()):
        pytest.skip("no Vulkan 1.3 device")
    return Machine("vulkan")


def unpacking(dtype: DType, memory: DType, words: int, count: int, wide: DType | None = None):
    """Each invocation unpacks all numbers of ``words`` words, ``count`` at a time; the first words are
    left out."""
    wide = wide or (DType.F32 if dtype.is_float else DType.I32)
    b = KernelBuilder("unpack", [(memory, False), (wide, True)], 0, index=DType.I32)
    held = words * 32 // dtype.bits
    number, step = b.workgroup_id(0), b.idx(words * 32 // memory.bits)
    block = b.load_words(b.bindings[0], b.add(step, b.mul(number, step)), words)
    start = b.mul(number, b.idx(held))
    for first in range(0, held, count):
        numbers = b.unpack(block, dtype, first, count)
        b.store(b.bindings[1], b.add(start, b.idx(first)), b.cast(numbers, wide))
    return b.build(), held


@pytest.mark.vulkan
@pytest.mark.parametrize("words", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("dtype", KINDS)
def test_numbers_of_words(gpu, dtype, words, count):
    kernel, held = unpacking(dtype, dtype, words, count)
    verify(kernel)
    bits = RNG.integers(0, 256, 2 * held * dtype.itemsize, np.uint8)
    data = bits.view(dtype.numpy)
    out = np.zeros(held, np.float32 if dtype.is_float else np.int32)
    gpu.run(kernel, [data, out])
    expected = data[held:].astype(out.dtype)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.vulkan
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, DType.I4, DType.U4])
def test_integers_as_real_numbers(gpu, dtype, count):
    """Every value at every place of a word."""
    kernel, held = unpacking(dtype, DType.U8, 4, count, DType.F32)
    assert not any(getattr(node, "op", "") == "cast" for node in kernel.body.walk())
    values = 1 << dtype.bits
    lines = [np.arange(first, first + held) % values for first in range(0, values, held)]
    rows = np.array([np.roll(line, turn) for line in lines for turn in range(32 // dtype.bits)])
    data = rows if dtype.bits == 8 else rows[:, 0::2] | rows[:, 1::2] << 4
    data = np.concatenate([np.zeros_like(data[:1]), data]).astype(np.uint8)
    out = np.zeros(rows.shape, np.float32)
    gpu.run(kernel, [data, out], grid=(len(rows), 1, 1))
    sign = values // 2 if dtype.is_signed else 0
    np.testing.assert_array_equal(out, (rows ^ sign) - sign)


@pytest.mark.vulkan
@pytest.mark.parametrize("dtype", [DType.I4, DType.U4])
def test_nibbles(gpu, dtype):
    kernel, held = unpacking(dtype, DType.U8, 4, 4)
    data = RNG.integers(0, 256, held, np.uint8)
    out = np.zeros(held, np.int32)
    gpu.run(kernel, [data, out])
    nibbles = np.stack([data[16:] & 15, data[16:] >> 4], 1).reshape(-1)
    expected = nibbles.view(np.uint8).astype(ml_dtypes.uint4)
    if dtype is DType.I4:
        expected = ((nibbles.astype(np.int8) ^ 8) - 8).astype(np.int32)
    np.testing.assert_array_equal(out, expected.astype(np.int32))


def test_words_are_of_buffers_and_hold_what_is_unpacked():
    b = KernelBuilder("wrong", [(DType.F16, False), (DType.F32, True)], 0, index=DType.I32)
    words = b.load_words(b.bindings[0], b.idx(0), 2)
    b.store(b.bindings[1], b.idx(0), b.unpack(words, DType.F16, 2, 4))
    with pytest.raises(CodegenError, match="hold no such numbers"):
        verify(b.build())
    b = KernelBuilder("wrong", [(DType.F32, True)], 0, index=DType.I32)
    b.load_words(b.shared(DType.F32, 8), b.idx(0), 2)
    with pytest.raises(CodegenError, match="not a buffer"):
        verify(b.build())


@pytest.mark.vulkan
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_products_of_four_bytes(gpu, left, right):
    b = KernelBuilder("dot", [(DType.I32, False)] * 3 + [(DType.I32, True)], 0, index=DType.I32)
    for i in range(32):
        x, y, z = (b.load(b.bindings[k], b.idx(i)) for k in range(3))
        b.store(b.bindings[3], b.idx(i), b.dot_bytes(x, y, z, (left, right)))
    kernel = b.build()
    verify(kernel)
    words = [RNG.integers(-(2**31), 2**31, 32).astype(np.int32) for _ in range(3)]
    out = np.zeros(32, np.int32)
    gpu.run(kernel, [*words, out])
    sides = (
        w.view(np.int8 if s else np.uint8).reshape(32, 4)
        for w, s in zip(words[:2], (left, right), strict=True)
    )
    a, c = (side.astype(np.int64) for side in sides)
    expected = ((a * c).sum(1) + words[2]).astype(np.int32)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.vulkan
def test_lowest_bytes_are_joined(gpu):
    b = KernelBuilder("join", [(DType.I32, False), (DType.I32, True)], 0, index=DType.I32)
    for i in range(16):
        words = [b.load(b.bindings[0], b.idx(4 * i + k)) for k in range(4)]
        b.store(b.bindings[1], b.idx(i), b.join_bytes(words))
    kernel, out = b.build(), np.zeros(16, np.int32)
    verify(kernel)
    words = RNG.integers(-(2**31), 2**31, 64).astype(np.int32)
    gpu.run(kernel, [words, out])
    np.testing.assert_array_equal(out.view(np.int8), words.astype(np.int8))


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu"])
@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("signed", [True, False])
def test_nibbles_on_cpus(target, lanes, signed):
    """All pairs of 4-bit integers, as bytes and as floats."""
    require_cpu(target)
    packed = np.arange(256, dtype=np.uint8)
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(-1).astype(np.int32)
    expected = np.where(numbers >= 8, numbers - 16, numbers) if signed else numbers
    dtypes = (DType.I8 if signed else DType.U8, DType.BF16, DType.F32)
    b = KernelBuilder("nibbles", [(DType.U8, False), *((dtype, True) for dtype in dtypes)], 0)
    with b.for_(0, 256, lanes) as loop:
        for result, dtype in zip(b.bindings[1:], dtypes, strict=True):
            unpacked = b.nibbles(b.load(b.bindings[0], loop.index, lanes), dtype, signed=signed)
            b.store(result, b.mul(loop.index, b.idx(2)), unpacked)
    kernel = b.build()
    verify(kernel)
    results = [np.zeros(512, dtype.numpy) for dtype in dtypes]
    Machine(target).run(kernel, [packed, *results])
    for out in results:
        np.testing.assert_array_equal(out.astype(np.int32), expected)


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v4", "cpu"])
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("signed", [True, False])
def test_low_nibbles_of_halves_of_words(target, lanes, signed):
    require_cpu(target)
    words = RNG.integers(-(2**31), 2**31, 64).astype(np.int32)
    numbers = (words.view(np.uint16) & 15).astype(np.int32)
    expected = np.where(numbers >= 8, numbers - 16, numbers) if signed else numbers
    b = KernelBuilder("pairs", [(DType.I32, False), (DType.BF16, True)], 0)
    with b.for_(0, 64, lanes) as loop:
        pairs = b.nibble_pairs(b.load(b.bindings[0], loop.index, lanes), signed=signed)
        b.store(b.bindings[1], b.mul(loop.index, b.idx(2)), pairs)
    kernel = b.build()
    verify(kernel)
    out = np.zeros(128, DType.BF16.numpy)
    Machine(target).run(kernel, [words, out])
    np.testing.assert_array_equal(out.astype(np.int32), expected)


def test_nibbles_are_of_bytes():
    b = KernelBuilder("nibbles", [(DType.I32, False), (DType.F32, True)], 0)
    unpacked = b.nibbles(b.load(b.bindings[0], b.idx(0), 4), DType.F32, signed=True)
    b.store(b.bindings[1], b.idx(0), unpacked)
    with pytest.raises(CodegenError, match="no vector of u8"):
        verify(b.build())
