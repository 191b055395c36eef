"""Cases of `benchmarks.overlap`: simulated devices with memory of their own, whose copies take about as long
as their kernels. Measured beside them is the same plan on the same devices without transfer queues."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.overlap.case import Result, check, go_first, measure, overruns, result_of, simulate_npus
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dtypes import DType
from mansard.hal import Device
from mansard.hal.registry import open_device
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap, Location, Value
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.placement import PlacementOptions
from mansard.runtime.profiling.profile import Profile

ROWS, SIDE = 1024, 32
BYTES = 2 * ROWS * SIDE
"""Of a value that crosses; the link is as slow as makes it `COPY_MS`."""
KERNEL_MS, COPY_MS = 10.0, 4.0
CHAINS, STEPS = 6, 4
PARTS = 8
FROM_MODEL = "the simulated devices' performance model, kernels and copies of a device at once"


def chains(devices: int) -> Graph:
    """Chains of products that change the device at every step: a device computes one chain's step while
    another's value comes and a third's goes."""
    b = GraphBuilder("chains")
    values = [b.input(f"x{chain}", (ROWS, SIDE), DType.BF16) for chain in range(CHAINS)]
    for step in range(STEPS):
        for chain, x in enumerate(values):
            b.location = part((chain + step) % devices)
            values[chain] = _product(b, x, STEPS * chain + step)
    return b.build(values)


def batch(devices: int) -> Graph:
    """Products of inputs of their own, dealt out: the next input comes and the last result leaves while one
    is computed."""
    b = GraphBuilder("batch")
    ends = []
    for number in range(PARTS * devices):
        b.location = part(number % devices)
        ends.append(_product(b, b.input(f"x{number}", (ROWS, SIDE), DType.BF16), number))
    return b.build(ends)


def part(number: int) -> Location:
    """Where the ops of one device come from; dispatches are pinned by it."""
    return Location(f"part {number}")


def _product(b: GraphBuilder, x: Value, seed: int) -> Value:
    data = np.random.default_rng(seed).standard_normal((SIDE, SIDE)) / np.sqrt(SIDE)
    weight = Constant.of(data.astype(DType.BF16.numpy), f"w{seed}")
    w = b.constant(f"w{seed}", weight, (SIDE, SIDE), DType.BF16)
    factors = (Cast(Arg(0, DType.BF16), DType.F32), Cast(Arg(1, DType.BF16), DType.F32))
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    body = Apply("mul", factors, DType.F32)
    y = b.generic([x, w], maps, (ROWS, SIDE, SIDE), body, reduced=1, combiner="add")
    return b.generic([y], [IndexMap.identity(2)], (ROWS, SIDE), Cast(Arg(0, DType.F32), DType.BF16))


def bound_ms(profile: Profile, steps: int) -> float:
    """The least time of a call whose devices compute and copy at once.

    The time of each device's kernels, with the shortest way in before the first and out behind the last, or
    that of its copies with a kernel between the last one in and the first one out; or that of a chain of
    ``steps``.
    """
    bound = steps * KERNEL_MS + (steps - 1) * 2 * COPY_MS + 2 * COPY_MS
    for rows in profile.parts:
        copies = sum(row.label.startswith(("transfer ", "upload ", "download ")) for row in rows.rows)
        kernels = len(rows.rows) - copies
        bound = max(bound, kernels * KERNEL_MS + 2 * COPY_MS, copies * COPY_MS + KERNEL_MS)
    return bound


def measured(graph: Graph, devices: Sequence[str], runs: int, *, apart: bool) -> tuple[Any, ...]:
    """Profiles of a graph, and the overruns, on devices with or without transfer queues."""
    opened: dict[str, Device] = {}
    for name in devices:
        opened[name] = device = open_device(name)
        device.capabilities = dataclasses.replace(device.capabilities, transfer_queue=apart)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for v in graph.inputs]
    expected = [np.asarray(y, np.float32) for y in interpret(graph, inputs)]
    placement = PlacementOptions(pins=tuple((part(n).text, device) for n, device in enumerate(devices)))
    compiled = compile_graph(graph, CompileOptions(targets=tuple(devices), placement=placement))
    with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights), opened) as model:
        check(model(*inputs), expected, 0.02)
        late = overruns(model)
        profiles = measure(model, inputs, 1, 1, runs)
        return profiles, overruns(model) - late


def overlapped(case: str, count: int, runs: int) -> Result:
    """One case on ``count`` devices."""
    scheduled = go_first()
    devices = simulate_npus([KERNEL_MS] * count, unified=False, link=BYTES / COPY_MS * 1e3)
    graph = GRAPHS[case](count)
    profiles, late = measured(graph, devices, runs, apart=True)
    (without, _), _ = measured(graph, devices, runs, apart=False)
    bound = bound_ms(profiles[0], STEPS if case == "copies-chains" else 1)
    return result_of(
        case, profiles, bound, FROM_MODEL, dispatch_ms=KERNEL_MS, goal=0.9, overrun=late,
        copy_ms=COPY_MS, without_transfer_queue_ms=without.latency_ms,
        speedup_over_one_queue=without.latency_ms / profiles[0].latency_ms, scheduled=scheduled,
    )  # fmt: skip


GRAPHS: dict[str, Callable[[int], Graph]] = {"copies-chains": chains, "copies-batch": batch}


def cases() -> Iterator[tuple[str, Callable[[int], list[Result]]]]:
    """Every case by name; called with how many runs to take the shortest of."""
    for kind, counts in (("copies-chains", (2, 3)), ("copies-batch", (1, 2))):
        for count in counts:
            yield f"{kind}-{count}", lambda runs, k=kind, c=count: [overlapped(k, c, runs)]  # type: ignore[misc]
