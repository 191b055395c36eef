"""The simulated graph NPU in Mansard's conformance suite: its kernels are programs."""

from __future__ import annotations

import functools

from mansard_npu_graph.device import DRIVER
from mansard_npu_graph.program import FORMAT, write_program

from mansard.dims import Dim, symbol
from mansard.dtypes import DType
from mansard.hal import Device, EntryPoint, ExecutableSpec
from mansard.ir import Graph, IndexMap, TensorType, Value
from mansard.ir.ops import Generic
from mansard.ir.scalar import Cast, DimValue, Index
from mansard.testing import Adapter, Conformance, SwapTests
from mansard.testing.graphs import A0, A1, F32, op

I32, I64 = DType.I32, DType.I64


def dim(name: str) -> DimValue:
    return DimValue(symbol(Dim(name)))


N, NUMBERS = symbol(Dim("n")), [f"p{number}" for number in range(20)]


def kernel(extents, body, inputs=(), combiner=None, dtype=I32):
    """A program of one op over n elements, or one."""
    rank = len(extents) if combiner is None else 1
    output = Value("out", TensorType(tuple(extents[:rank]), dtype))
    reads = tuple(IndexMap.identity(1) for _ in inputs)
    generic = Generic(tuple(inputs), (output,), tuple(extents), reads, body, combiner)
    return Graph("kernel", tuple(inputs), (output,), (generic,))


X, Y = (Value(name, TensorType((N,), F32)) for name in "xy")
KERNELS = {
    "fill_index": (
        kernel((N,), Cast(op("add", op("mul", Index(0), dim("a")), dim("b")), I32)),
        ("n", "a", "b"),
    ),
    "add": (kernel((N,), op("add", A0, A1), (X, Y), dtype=F32), ("n",)),
    # The sum of 60 n numbers, which takes as long as the steps that it stands for do elsewhere.
    "spin": (kernel((1, N, 60), Cast(op("mul", Index(1), Index(2)), I32), combiner="add"), ("n",)),
    "wide": (
        kernel((1,), functools.reduce(lambda a, b: op("add", a, b), map(dim, NUMBERS)), dtype=I64),
        NUMBERS,
    ),
}


class GraphNpuAdapter(Adapter):
    def open(self) -> Device:
        return DRIVER.open(DRIVER.devices()[0])

    def spec(self, name: str) -> ExecutableSpec:
        graph, parameters = KERNELS[name]
        entry = EntryPoint(name, len(graph.inputs) + 1, len(parameters))
        return ExecutableSpec(FORMAT, "gnpu", write_program(graph, parameters), (entry,))

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return (1, 1, 1)


class TestGraphNpu(Conformance, SwapTests):
    adapter = GraphNpuAdapter()
