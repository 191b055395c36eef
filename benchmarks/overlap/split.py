"""Cases of `benchmarks.overlap`: products partitioned over simulated devices that run in real time, in the
ratio of their rates, and a device that becomes slower on the way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.overlap.case import (
    Result,
    check,
    compiled,
    go_first,
    measure,
    overruns,
    result_of,
    simulate_npus,
)
from mansard.api import Model
from mansard.dtypes import DType
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap, Value
from mansard.ir.dispatch import Dispatch, is_contraction
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.placement import PlacementOptions, estimate_work

ROWS, SIDE = 192, 32
STEPS = 4
ALONE_MS = 48.0
"""What one product takes on the slowest device by itself."""
WARM_UP = 12
"""Calls before measuring, in which shares settle."""
SLOWED, CALLS = 8, 24
"""The call from which on a device has half its speed, and all calls."""
FROM_MODEL = "all devices' rates together"


def rows_chain() -> Graph:
    """Products x W1 W2 ...: a piece of rows needs nothing of the others."""
    b = GraphBuilder("rows")
    x = b.input("x", (ROWS, SIDE), DType.BF16)
    for step in range(STEPS):
        x = _product(b, x, _constant(b, step, (SIDE, SIDE)))
    return b.build([x])


def exchange_chain() -> Graph:
    """Products ... W2 W1 x: every piece of rows needs all rows of the step before."""
    b = GraphBuilder("exchange")
    x = b.input("x", (ROWS, SIDE), DType.BF16)
    for step in range(STEPS):
        x = _product(b, _constant(b, step, (ROWS, ROWS)), x)
    return b.build([x])


def _constant(b: GraphBuilder, seed: int, shape: tuple[int, int]) -> Value:
    data = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[1])
    return b.constant(f"w{seed}", Constant.of(data.astype(DType.BF16.numpy)), shape, DType.BF16)


def _product(b: GraphBuilder, x: Value, y: Value) -> Value:
    (rows, depth), columns = x.type.shape, y.type.shape[1]
    factors = (Cast(Arg(0, DType.BF16), DType.F32), Cast(Arg(1, DType.BF16), DType.F32))
    body = Apply("mul", factors, DType.F32)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    z = b.generic([x, y], maps, (rows, columns, depth), body, reduced=1, combiner="add")
    return b.generic([z], [IndexMap.identity(2)], (rows, columns), Cast(Arg(0, DType.F32), DType.BF16))


def _operations(graph: Graph) -> float:
    """Operations of all products, as the performance model counts them."""
    products = [op for op in graph.ops if is_contraction(op)]
    alone = [Dispatch("", (op,), op.inputs, op.outputs, op.output.type.shape) for op in products]
    return float(sum(int(str(estimate_work(dispatch).operations)) for dispatch in alone))


def simulate(graph: Graph, ratio: Sequence[float], *, unified: bool = True) -> tuple[list[str], float]:
    """Simulated NPUs whose rates have this ratio; their names, and the least milliseconds of a call."""
    names = simulate_npus([0.0] * len(ratio), unified=unified)
    rate = _operations(graph) / (STEPS * ALONE_MS / 1e3)
    path = Path(os.environ["MANSARD_NPU_MODEL"])
    text = path.read_text().split("[instance")[0]
    for number, factor in enumerate(ratio):
        text += f"[instance.{number}]\nrates = {{i8 = 1e18, bf16 = {rate * factor}}}\n"
    path.write_text(text)
    return names, STEPS * ALONE_MS / sum(ratio)


def _clocks(model: Model) -> list[Any]:
    return [slot.device.clock for slot in model.bind().slots]  # type: ignore[attr-defined]


def _inputs(graph: Graph) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for v in graph.inputs]


def balanced(graph: Graph, ratio: Sequence[float], runs: int) -> Result:
    """All products partitioned; measured when the shares have settled."""
    scheduled = go_first()
    devices, bound = simulate(graph, ratio)
    inputs = _inputs(graph)
    expected = [np.asarray(y, np.float32) for y in interpret(graph, inputs)]
    with compiled(graph, devices, PlacementOptions(split="all"), 1) as model:
        for _ in range(WARM_UP):
            check(model(*inputs), expected, 0.02)
        late = overruns(model)
        profiles = measure(model, inputs, 1, 1, runs)
        shares = [str(share) for share in model.shares]
        return result_of(
            "split", profiles, bound, FROM_MODEL, goal=0.9, overrun=overruns(model) - late,
            ratio=list(ratio), shares=shares, scheduled=scheduled,
        )  # fmt: skip


def slowed(runs: int) -> Result:
    """Two equal devices, of which the first has half its speed from some call on: shares and efficiency of
    every call. The result is that of the settled state."""
    scheduled = go_first()
    graph = rows_chain()
    devices, bound = simulate(graph, (1.0, 1.0))
    inputs = _inputs(graph)
    expected = [np.asarray(y, np.float32) for y in interpret(graph, inputs)]
    with compiled(graph, devices, PlacementOptions(split="all"), 1) as model:
        calls = []
        for call in range(CALLS):
            if call == SLOWED:
                _clocks(model)[0].speed = 0.5
            best = bound if call < SLOWED else bound * 2 / 1.5
            (share,) = model.shares
            begin = time.perf_counter()
            outputs = model(*inputs)
            took = 1e3 * (time.perf_counter() - begin)
            check(outputs, expected, 0.02)
            calls.append({"shares": share.fractions, "ms": took, "efficiency": best / took})
        profiles = measure(model, inputs, 1, 1, runs)
        return result_of(
            "slowed", profiles, bound * 2 / 1.5, FROM_MODEL, goal=0.9, slowed_at=SLOWED, calls=calls,
            scheduled=scheduled,
        )  # fmt: skip


def cases() -> Iterator[tuple[str, Callable[[int], list[Result]]]]:
    """Every case by name; called with how many runs to take the shortest of."""
    yield "split-2", lambda runs: [balanced(rows_chain(), (1.0, 1.0), runs)]
    yield "split-3", lambda runs: [balanced(rows_chain(), (1.0, 1.0, 1.0), runs)]
    yield "split-3-unequal", lambda runs: [balanced(rows_chain(), (1.0, 2.0, 3.0), runs)]
    yield "split-exchange-2", lambda runs: [balanced(exchange_chain(), (1.0, 1.0), runs)]
    yield "split-exchange-3", lambda runs: [balanced(exchange_chain(), (1.0, 2.0, 1.0), runs)]
    yield "split-slowed", lambda runs: [slowed(runs)]
