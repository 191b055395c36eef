"""Cases of `benchmarks.overlap` on simulated devices that run in real time, so that the cores of the machine
do not matter: independent branches, branches that meet after every step, branches that share the CPU for
what the simulated devices have no function for, and requests in a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.overlap.case import (
    Result,
    check,
    compiled,
    device_ms,
    go_first,
    measure,
    overruns,
    result_of,
    simulate_npus,
)
from mansard.dtypes import DType
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap, Location, Value
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast, Const
from mansard.placement import PlacementOptions

SIDE = 32
"""Rows and columns of the matrices: NumPy multiplies them in a small part of the time that is simulated."""
TIMES_MS = (20.0, 5.0, 1.0)
"""Of a dispatch; the last one shows what the runtime costs, and the host that computes for the devices."""
MIN_MS = 5.0
"""Of a dispatch, for an efficiency to have a goal."""
FROM_MODEL = "the simulated devices' performance model"


def product(b: GraphBuilder, x: Value, seed: int, also: Value | None = None) -> Value:
    """x times a constant, plus ``also``, rounded to bf16: one dispatch."""
    data = np.random.default_rng(seed).standard_normal((SIDE, SIDE)) / np.sqrt(SIDE)
    weight = Constant.of(data.astype(DType.BF16.numpy), f"w{seed}")
    w = b.constant(f"w{seed}", weight, (SIDE, SIDE), DType.BF16)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    factors = (Cast(Arg(0, DType.BF16), DType.F32), Cast(Arg(1, DType.BF16), DType.F32))
    body = Apply("mul", factors, DType.F32)
    y = b.generic([x, w], maps, (SIDE, SIDE, SIDE), body, reduced=1, combiner="add")
    same = IndexMap.identity(2)
    if also is None:
        return b.generic([y], [same], (SIDE, SIDE), Cast(Arg(0, DType.F32), DType.BF16))
    both = Apply("add", (Arg(0, DType.F32), Cast(Arg(1, DType.BF16), DType.F32)), DType.F32)
    return b.generic([y, also], [same, same], (SIDE, SIDE), Cast(both, DType.BF16))


def branches(count: int, steps: int) -> Graph:
    """Chains of products, each of an input of its own."""
    b = GraphBuilder("branches")
    ends = []
    for branch in range(count):
        b.location = part(branch)
        x = b.input(f"x{branch}", (SIDE, SIDE), DType.BF16)
        for step in range(steps):
            x = product(b, x, 100 * branch + step)
        ends.append(x)
    return b.build(ends)


def exchange(count: int, steps: int) -> Graph:
    """Chains of products, each of which also needs its neighbour's result of the step before."""
    b = GraphBuilder("exchange")
    values = [b.input(f"x{n}", (SIDE, SIDE), DType.BF16) for n in range(count)]
    for step in range(steps):
        before = values
        values = []
        for n, x in enumerate(before):
            b.location = part(n)
            values.append(product(b, x, 100 * n + step, before[n - 1]))
    return b.build(values)


def fallback(count: int, steps: int) -> Graph:
    """Chains of products with a softmax behind each, which the CPU has to do for all devices: the chains come
    one after the other in the model, and the CPU is not to serve them so."""
    b = GraphBuilder("fallback")
    ends = []
    for branch in range(count):
        x = b.input(f"x{branch}", (SIDE, SIDE), DType.BF16)
        for step in range(steps):
            b.location = part(branch)
            x = product(b, x, 100 * branch + step)
            b.location = Location("softmax")
            x = softmax(b, x)
        ends.append(x)
    return b.build(ends)


def softmax(b: GraphBuilder, x: Value) -> Value:
    """Of rows, in f32, times their length, rounded to bf16."""
    shape, whole, row = x.type.shape, IndexMap.identity(2), IndexMap.of_dims((0,))
    a, c = Arg(0, DType.F32), Arg(1, DType.F32)
    wide = b.generic([x], [whole], shape, Cast(Arg(0, DType.BF16), DType.F32))
    top = b.generic([wide], [whole], shape, a, reduced=1, combiner="max")
    lower = Apply("exp", (Apply("sub", (a, c), DType.F32),), DType.F32)
    e = b.generic([wide, top], [whole, row], shape, lower)
    total = b.generic([e], [whole], shape, a, reduced=1, combiner="add")
    part_of = Apply("mul", (Apply("div", (a, c), DType.F32), Const(float(SIDE), DType.F32)), DType.F32)
    return b.generic([e, total], [whole, row], shape, Cast(part_of, DType.BF16))


def pipeline(count: int, steps: int) -> Graph:
    """One chain of products, in stages of equal length."""
    b = GraphBuilder("pipeline")
    x = b.input("x", (SIDE, SIDE), DType.BF16)
    for stage in range(count):
        b.location = part(stage)
        for step in range(steps):
            x = product(b, x, 100 * stage + step)
    return b.build([x])


def part(number: int) -> Location:
    """Where the ops of one device come from; `simulated` pins dispatches by it."""
    return Location(f"part {number}")


def _run(
    case: str,
    graph: Graph,
    devices: list[str],
    placement: PlacementOptions,
    *,
    dispatch_ms: float,
    requests: int,
    in_flight: int,
    goal: float | None,
    runs: int,
    scheduled: str,
) -> Result:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for v in graph.inputs]
    expected = [np.asarray(y, np.float32) for y in interpret(graph, inputs)]
    with compiled(graph, devices, placement, in_flight) as model:
        check(model(*inputs), expected, 0.02)
        late = overruns(model)
        profiles = measure(model, inputs, requests, in_flight, runs)
        per_request = device_ms(model)
        bound = max(max(per_request.values()) * requests, profiles[0].expected_bound_ms or 0.0)
        return result_of(
            case,
            profiles,
            bound,
            FROM_MODEL,
            dispatch_ms=dispatch_ms,
            goal=goal,
            overrun=overruns(model) - late,
            device_ms_per_request=per_request,
            scheduled=scheduled,
        )


def simulated(case: str, count: int, dispatch_ms: float, runs: int) -> Result:
    """One case on ``count`` devices whose dispatches take so long."""
    scheduled = go_first()
    devices = simulate_npus([dispatch_ms] * count)
    placement = PlacementOptions(pins=tuple((part(n).text, device) for n, device in enumerate(devices)))
    many = {"requests": 32, "in_flight": count + 1} if case == "pipeline" else {"requests": 1, "in_flight": 1}
    graph = GRAPHS[case](count, 2 if case == "pipeline" else 8)
    goal = (0.95 if case == "branches" else 0.9) if dispatch_ms >= MIN_MS else None
    return _run(case, graph, devices, placement, dispatch_ms=dispatch_ms, goal=goal, runs=runs,
                scheduled=scheduled, **many)  # fmt: skip


GRAPHS: dict[str, Callable[[int, int], Graph]] = {
    "branches": branches,
    "exchange": exchange,
    "fallback": fallback,
    "pipeline": pipeline,
}


def cases() -> Iterator[tuple[str, Callable[[int], list[Result]]]]:
    """Every case by name; called with how many runs to take the shortest of."""
    for kind in GRAPHS:
        for count in (2, 3):
            for ms in TIMES_MS:
                name = f"{kind}-{count}-{ms:g}ms"
                yield name, lambda runs, k=kind, c=count, t=ms: [simulated(k, c, t, runs)]  # type: ignore[misc]
