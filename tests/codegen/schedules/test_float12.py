"""Products with weights in floats of 12 bits on every device, and the instruction that unpacks them."""

import numpy as np
import pytest
from support import vulkan_support
from support.decoders.float12_products import BF16, product_graph
from support.graph_runner import check, compare, compiled, outputs
from support.kernels.runner import Machine, require_cpu

from mansard import dims
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.kernel.verify import verify
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common.float12 import float12_product
from mansard.compiler import CompileOptions, compile_graph
from mansard.compiler.compile import lower_graph
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder, float12
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Arg, Cast
from mansard.passes.products.float12_weights import unpacked

F32, U8 = DType.F32, DType.U8
RNG = np.random.default_rng(5)
DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]


def inputs_of(graph, rows):
    shapes = [[d if isinstance(d, int) else rows for d in v.type.shape] for v in graph.inputs]
    return [
        RNG.standard_normal(shape).astype(v.type.dtype.numpy)
        for shape, v in zip(shapes, graph.inputs, strict=True)
    ]


def tolerance(device):
    """Matrix units of GPUs may be used where the vector is of bf16."""
    if device == "vulkan":
        vulkan_support.usable_device()
    return 2e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("x", [F32, BF16])
@pytest.mark.parametrize("rows, columns, depth", [(1, 48, 128), (1, 33, 1056), (3, 20, 90), (21, 64, 256)])
def test_products(device, x, rows, columns, depth):
    graph, allowed = product_graph(rows, columns, depth, x=x, residual=True), tolerance(device)
    check(graph, inputs_of(graph, rows), device, rtol=allowed, atol=allowed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("most", [8, 40])
def test_any_number_of_rows(device, most):
    graph, allowed = product_graph(dims.symbol(Dim("rows", 1, most)), 40, 256, x=BF16), tolerance(device)
    with compiled(graph, device) as model:
        for rows in (1, 2, 5, most):
            inputs = inputs_of(graph, rows)
            compare(outputs(model, inputs), interpret(graph, inputs), allowed, allowed)


@pytest.mark.parametrize("target", ["cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2"])
@pytest.mark.parametrize("rows", [1, 5, 17])
def test_other_cpus(target, rows):
    require_cpu(target)
    graph = product_graph(rows, 37, 384, x=BF16)
    result = compile_graph(graph, CompileOptions(targets=(target,)))
    inputs = inputs_of(graph, rows)
    with Model(result.plan, MemoryResources(result.executables, result.weights)) as model:
        compare(outputs(model, inputs), interpret(graph, inputs), 2e-5, 2e-5)


def reduction(graph):
    (dispatch,) = lower_graph(graph, CompileOptions(targets=("cpu",))).dispatches
    nest = Nest(dispatch)
    (root,) = (r for r in nest.roots if r.reduces)
    return nest, root


@pytest.mark.parametrize("depth, x, found", [(128, BF16, True), (128, F32, False), (91, BF16, False)])
def test_products_of_bf16_are_found(depth, x, found):
    """Nibbles of a row begin at a byte where its length is even."""
    product = float12_product(*reduction(product_graph(1, 8, depth, x=x)))
    assert (product is not None) == found
    if product is not None:
        assert [f.value.type.dtype for f in (product.x, product.high, product.low)] == [BF16, U8, DType.U4]


def test_the_parts_of_an_expression():
    high, low = Arg(1, U8), Arg(2, DType.U4)
    number = float12.value(high, low)
    assert float12.parts(number) == (high, low)
    assert float12.parts(Cast(number, BF16)) is None
    assert float12.parts(high) is None
    assert float12.parts(float12.value(low, low)) == (low, low)


@pytest.mark.parametrize("lanes", [8, 16, 32, 64])
def test_every_number_is_unpacked(lanes):
    b = KernelBuilder("unpack", [(U8, False), (U8, False), (F32, True)], 0)
    start = b.mul(b.workgroup_id(0), b.idx(lanes))
    high = b.load(b.bindings[0], start, lanes)
    low = b.load(b.bindings[1], b.binary("shr", start, b.idx(1)), lanes // 2)
    b.store(b.bindings[2], start, b.cast(b.float12(high, low), F32))
    kernel = b.build()
    verify(kernel)
    codes = RNG.permutation(4096)
    sign, exponent, mantissa = codes >> 11, codes >> 7 & 15, codes & 127
    nibbles = ((mantissa & 7) | sign << 3).astype(np.uint8)
    arrays = [
        (codes >> 3 & 255).astype(np.uint8),
        nibbles[0::2] | nibbles[1::2] << 4,
        np.zeros(4096, np.float32),
    ]
    Machine("cpu").run(kernel, arrays, grid=(4096 // lanes, 1, 1))
    expected = np.where(sign, -1, 1) * np.ldexp(1 + mantissa / 128, exponent - 15)
    np.testing.assert_array_equal(arrays[2], expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("words", [0, 3])
@pytest.mark.parametrize("rows, depth", [(40, 256), (7, 90), (300, 1024)])
def test_weights_are_unpacked(device, words, rows, depth):
    """Of an input, since those of constants are unpacked when a small model is compiled."""
    tolerance(device)
    places = RNG.integers(0, depth, (words, rows)) | RNG.integers(0, 2, (words, rows)) * float12.NO_PLACE
    numbers = RNG.standard_normal((words, rows)).astype(BF16.numpy).view(np.uint16).astype(np.int64)
    b = GraphBuilder("unpack")

    def constant(name, data, dtype):
        return b.constant(name, Constant.of(data, name), data.shape, dtype)

    low = constant("low", RNG.integers(0, 16, (rows, depth), np.uint8).astype(DType.U4.numpy), DType.U4)
    bits = (numbers << 16 | places).astype(np.uint32).view(np.int32)
    exceptions = constant("exceptions", bits, DType.I32) if words else None
    high, factors = b.input("high", (rows, depth), U8), constant("factors", np.ones(rows, np.float32), F32)
    graph = b.build([b.append(unpacked(float12.Float12Weight(high, low, factors, exceptions), set()))])
    inputs = [RNG.integers(0, 256, (rows, depth), np.uint8)]
    (expected,) = interpret(graph, inputs)
    with compiled(graph, device) as model:
        np.testing.assert_array_equal(outputs(model, inputs)[0].view(np.uint16), expected.view(np.uint16))
