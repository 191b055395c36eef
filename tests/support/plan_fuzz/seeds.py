"""The models whose plans are mutated: every class and field of a plan is in one of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mansard import dims
from mansard.artifact.resources import MemoryResources, read_artifact, write_artifact
from mansard.compiler import CompileOptions, compile_graph
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap
from mansard.ir.scalar import Arg, Cast, Const, Gather, Index
from mansard.placement import PlacementOptions
from mansard.plan.plan import ExecutableRef, Plan
from mansard.plan.serialise import executables_of, plan_to_json
from support.graphs import A0, F32, binary, matmul, op, softmax, unary
from support.ir_graphs import call


@dataclass(frozen=True)
class Seed:
    """A model in a file, and its plan as the data that mutations change."""

    name: str
    path: Path

    @cached_property
    def plan(self) -> Plan:
        return read_artifact(self.path)[0]

    @cached_property
    def executables(self) -> tuple[ExecutableRef, ...]:
        return executables_of(self.plan)

    @cached_property
    def data(self) -> dict[str, Any]:
        return json.loads(plan_to_json(self.plan, self.executables))

    @property
    def drivers(self) -> set[str]:
        return {device.driver for device in self.plan.devices}


def weight(b: GraphBuilder, rows: int, columns: int, dtype: DType = F32):
    data = np.random.default_rng(rows * columns).integers(-3, 4, (rows, columns)).astype(dtype.numpy)
    return b.constant("w", Constant.of(data), (rows, columns), dtype)


def dynamic() -> Graph:
    """Two symbols, one of them with a divisor; products, rows, two outputs."""
    b = GraphBuilder()
    n, m = dims.symbol(Dim("n", 1, 48)), dims.symbol(Dim("m", 4, 64, 4))
    x, y = b.input("x", (n, 16), F32), b.input("y", (16, m), F32)
    h = unary(b, "tanh", matmul(b, x, weight(b, 16, 24)))
    total = b.generic([h], [IndexMap.identity(2)], (n, 24), A0, reduced=1, combiner="add")
    scores = softmax(b, matmul(b, matmul(b, h, weight(b, 24, 16)), y))
    return b.build([scores, total])


def states() -> Graph:
    """One updated in place, one replaced, one with contents at the start."""
    b = GraphBuilder()
    cache = b.state("cache", (16, 32), F32)
    count = b.state("count", (16, 32), F32, Constant.of(np.ones((16, 32), np.float32), "count"))
    rows, new = b.input("rows", (9, 1), DType.I64), b.input("new", (9, 32), F32)
    after = b.scatter(cache, rows, new, None)
    b.update_state(cache, after)
    more = binary(b, "add", count, unary(b, "tanh", after))
    b.update_state(count, more)
    return b.build([unary(b, "neg", more)])


def kinds() -> Graph:
    """A lookup, a sort, a scan, slices that are joined, bytes as weights, an assert."""
    b = GraphBuilder()
    where, x = b.input("where", (12,), DType.I64), b.input("x", (12, 20), F32)
    table = weight(b, 40, 20)
    row = op("min", op("max", Arg(0, DType.I64), Const(0, DType.I64)), Const(39, DType.I64))
    found = b.generic([where, table], [IndexMap((_dim(0),)), None], (12, 20), Gather(1, (row, Index(1)), F32))
    ordered, places = b.sort(binary(b, "add", found, x), 1)
    sums = b.scan(ordered, 1)
    left = b.slice(sums, (0, 0), (12, 8), (1, 1))
    right = b.slice(unary(b, "exp", sums), (0, 4), (12, 16), (1, 1))
    narrow = b.generic(
        [weight(b, 24, 8, DType.I8)], [IndexMap.identity(2)], (24, 8), Cast(Arg(0, DType.I8), F32)
    )
    y = matmul(b, b.concat([left, right], 1), narrow)
    body = call("lt", A0, Const(1e9, F32), dtype=DType.BOOL)
    small = b.generic([x], [IndexMap.identity(2)], (12, 20), body)
    b.assert_true(small, "all are small")
    return b.build([y, places, small])


def _dim(number: int):
    from mansard.ir import Linear

    return Linear.dim(number)


def chain() -> Graph:
    """Products one after another, for several devices."""
    b = GraphBuilder()
    x = b.input("x", (32, 32), F32)
    y = x
    for number in range(4):
        y = unary(b, ("tanh", "exp", "neg", "abs")[number], matmul(b, y, weight(b, 32, 32)))
        y = binary(
            b, "mul", y, b.generic([x], [IndexMap.identity(2)], (32, 32), op("mul", A0, Const(0.01, F32)))
        )
    return b.build([y])


def rows() -> Graph:
    """A product of varying rows to be partitioned."""
    b = GraphBuilder()
    n = dims.symbol(Dim("n", 1, 96))
    x = b.input("x", (n, 64), F32)
    return b.build([unary(b, "tanh", matmul(b, x, weight(b, 64, 512)))])


SEEDS: dict[str, tuple[Callable[[], Graph], CompileOptions]] = {
    "dynamic on the CPU": (dynamic, CompileOptions(targets=("cpu",))),
    "states on the CPU": (states, CompileOptions(targets=("cpu",))),
    "kinds on the CPU": (kinds, CompileOptions(targets=("cpu",))),
    "variants on the CPU": (dynamic, CompileOptions(targets=("cpu:x86-64-v3,x86-64-v2",))),
    "dynamic on Vulkan": (dynamic, CompileOptions(targets=("vulkan",))),
    "states on Vulkan": (states, CompileOptions(targets=("vulkan",))),
    "kinds on Vulkan": (kinds, CompileOptions(targets=("vulkan",))),
    "chain on both": (
        chain,
        CompileOptions(
            targets=("cpu", "vulkan"),
            placement=PlacementOptions(
                pins=(("contraction", "vulkan"), ("contraction_2", "vulkan"), ("*", "cpu"))
            ),
        ),
    ),
    "rows on both": (
        rows,
        CompileOptions(targets=("cpu", "vulkan"), placement=PlacementOptions(split="all")),
    ),
}


def make_seeds(folder: Path, drivers: set[str]) -> list[Seed]:
    """Compile the models that run on these drivers, each into a file of the folder."""
    seeds = []
    for name, (build, options) in SEEDS.items():
        if not {target.partition(":")[0] for target in options.targets} <= drivers:
            continue
        path = folder / f"{name.replace(' ', '-')}.mansard"
        result = compile_graph(build(), options)
        write_artifact(path, result.plan, MemoryResources(result.executables, result.weights))
        seeds.append(Seed(name, path))
    return seeds
