"""Generated kernels: whatever a device lacks, what it runs gives the results of the interpreter."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.compiler.targets import backend
from mansard.dtypes import DType
from mansard.errors import PlacementError
from mansard.ir import Graph, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.placement import PlacementOptions
from mansard.testing.adapter import Suite, Workbench, computes
from mansard.testing.graphs import A0, F32, binary, layer_norm, maps, matmul, op, softmax, unary
from mansard.testing.results import Arrays, compare, outputs, validate_spirv

_REFUSED = re.compile(r"needs the device feature ([\w, ]+)")


def random(dtype: DType, *shape: int) -> npt.NDArray[np.generic]:
    """Numbers of moderate size, the same at every run."""
    generator = np.random.default_rng(sum(shape))
    if dtype in (DType.I8, DType.I32, DType.I64, DType.BOOL):
        return generator.integers(-3 if dtype is not DType.BOOL else 0, 4, shape).astype(dtype.numpy)
    return (generator.standard_normal(shape) / 2).astype(dtype.numpy)


def linear() -> tuple[Graph, Arrays]:
    """A product with a bias and a function behind it."""
    b = GraphBuilder()
    x, w, bias = b.input("x", (33, 130), F32), b.input("w", (130, 70), F32), b.input("b", (70,), F32)
    y = unary(b, "tanh", binary(b, "add", matmul(b, x, w), bias))
    return b.build([y]), [random(F32, 33, 130), random(F32, 130, 70), random(F32, 70)]


def one_row() -> tuple[Graph, Arrays]:
    """A vector times a matrix."""
    b = GraphBuilder()
    x, w = b.input("x", (1, 700), F32), b.input("w", (300, 700), F32)
    return b.build([matmul(b, x, w, transposed=True)]), [random(F32, 1, 700), random(F32, 300, 700)]


def narrow(dtype: DType, rows: int) -> Callable[[], tuple[Graph, Arrays]]:
    """A product of narrow operands with wide sums."""

    def make() -> tuple[Graph, Arrays]:
        b = GraphBuilder()
        wide = DType.I32 if dtype is DType.I8 else F32
        x, w = b.input("x", (rows, 96), dtype), b.input("w", (96, 80), dtype)
        body = Apply("mul", (Cast(Arg(0, dtype), wide), Cast(Arg(1, dtype), wide)), wide)
        shape = (rows, 80, 96)
        y = b.generic([x, w], [maps(0, 2), maps(2, 1)], shape, body, reduced=1, combiner="add")
        return b.build([y]), [random(dtype, rows, 96), random(dtype, 96, 80)]

    return make


def normalised_rows() -> tuple[Graph, Arrays]:
    """Reductions of rows, and what uses them."""
    b = GraphBuilder()
    x, gamma, beta = b.input("x", (9, 257), F32), b.input("g", (257,), F32), b.input("b", (257,), F32)
    outputs_ = [softmax(b, x), layer_norm(b, x, gamma, beta)]
    return b.build(outputs_), [random(F32, 9, 257), random(F32, 257), random(F32, 257)]


def one_sum() -> tuple[Graph, Arrays]:
    """All of a long vector into one number."""
    b = GraphBuilder()
    x = b.input("x", (70_001,), F32)
    y = b.generic([x], [maps(0)], (70_001,), A0, reduced=1, combiner="add")
    return b.build([y]), [random(F32, 70_001)]


def elementwise(dtype: DType) -> Callable[[], tuple[Graph, Arrays]]:
    """A permutation and arithmetic on one element type."""

    def make() -> tuple[Graph, Arrays]:
        b = GraphBuilder()
        x, y = b.input("x", (40, 51), dtype), b.input("y", (51, 40), dtype)
        one, other = Arg(0, dtype), Arg(1, dtype)
        body = op("or", one, other) if dtype is DType.BOOL else op("add", op("mul", one, other), other)
        z = b.generic([x, y], [maps(0, 1), maps(1, 0)], (40, 51), body)
        return b.build([z]), [random(dtype, 40, 51), random(dtype, 51, 40)]

    return make


GRAPHS: dict[str, Callable[[], tuple[Graph, Arrays]]] = {
    "linear": linear,
    "one_row": one_row,
    "rows": normalised_rows,
    "one_sum": one_sum,
    "f16_product": narrow(DType.F16, 64),
    "bf16_product": narrow(DType.BF16, 64),
    "i8_product": narrow(DType.I8, 64),
    "f16_row": narrow(DType.F16, 1),
    **{
        f"{d.value}_elements": elementwise(d) for d in (DType.F16, DType.F64, DType.I64, DType.I8, DType.BOOL)
    },
}


class KernelTests(Suite):
    """For drivers whose kernels Mansard generates."""

    @computes
    @pytest.mark.parametrize("name", GRAPHS)
    def test_generated_kernels(self, bench: Workbench, name: str) -> None:
        graph, inputs = GRAPHS[name]()
        device = bench.device
        target = backend(device.info.driver).describe_device(device.info)
        options = CompileOptions(targets=(target,), placement=PlacementOptions(fallback="error"))
        try:
            compiled = compile_graph(graph, options)
        except PlacementError as error:
            refused = _REFUSED.findall(str(error))
            assert refused, error
            lacking = {feature for part in refused for feature in part.split(", ")}
            assert not {f for f in lacking if device.info.features.get(f)}, error
            return
        validate_spirv(compiled.plan, compiled.executables)
        tolerance = 2e-3 if name.startswith(("f16_", "bf16_")) else 1e-5
        with Model(
            compiled.plan, MemoryResources(compiled.executables, compiled.weights), devices=[device]
        ) as model:
            compare(outputs(model, inputs), interpret(graph, inputs), tolerance, tolerance)
