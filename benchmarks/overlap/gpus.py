"""Cases of `benchmarks.overlap` on several GPUs: independent branches, branches that meet after every step,
requests in a pipeline, products partitioned by rows. There are none on a machine with fewer than two.

Matrices are made and summed on the GPUs, so that calls copy next to nothing from and to the host. The bound
is measured: what one device takes alone, in the same run, for its part of the work (`Part`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.overlap.case import Result, check, compiled, measure, result_of
from mansard.dtypes import DType
from mansard.hal import registry
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap, Location, Value
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.placement import PlacementOptions

SIDE = 4096
"""Rows and columns of the matrices: a product of bf16 takes an H200 about 0.8 ms."""
STEPS = 48
"""Products of a branch, of a stage, and of the chain that is partitioned."""
FROM_ALONE = "one device's part of the work, measured on a device alone"
_BF16, _F32 = DType.BF16, DType.F32


@dataclass(frozen=True)
class Part:
    """A case: its graph, the graph of what one device does of it, and how often per request."""

    graph: Graph
    alone: Graph
    placement: PlacementOptions
    requests: int = 1
    in_flight: int = 1
    goal: float | None = None
    part: float = 1.0
    """Of the time of ``alone``: less than all where that is partitioned."""


class Chains:
    """Builds chains of products of one matrix after the other, with one matrix's data for all of them."""

    def __init__(self, side: int, steps: int) -> None:
        self.side, self.steps = side, steps
        rng = np.random.default_rng(0)
        pool = rng.standard_normal(side * side + 61 * 4 * steps, np.float32) / np.float32(np.sqrt(side))
        self._pool = pool.astype(_BF16.numpy)

    def start(self, b: GraphBuilder, name: str) -> Value:
        """A matrix of constants plus a row that is an input, in bf16."""
        shape = (self.side, self.side)
        row = b.input(name, (self.side,), _F32)
        both = Apply("add", (Cast(Arg(0, _BF16), _F32), Arg(1, _F32)), _F32)
        maps = [IndexMap.identity(2), IndexMap.of_dims((1,))]
        return b.generic([self._held(b, 0), row], maps, shape, Cast(both, _BF16))

    def product(self, b: GraphBuilder, x: Value, seed: int, also: Value | None = None) -> Value:
        """x times a constant, plus ``also``, rounded to bf16: one dispatch."""
        maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
        body = Apply("mul", (Cast(Arg(0, _BF16), _F32), Cast(Arg(1, _BF16), _F32)), _F32)
        extents = (self.side, self.side, self.side)
        y = b.generic([x, self._held(b, 1 + seed)], maps, extents, body, reduced=1, combiner="add")
        same, shape = IndexMap.identity(2), (self.side, self.side)
        if also is None:
            return b.generic([y], [same], shape, Cast(Arg(0, _F32), _BF16))
        both = Apply("add", (Arg(0, _F32), Cast(Arg(1, _BF16), _F32)), _F32)
        return b.generic([y, also], [same, same], shape, Cast(both, _BF16))

    def end(self, b: GraphBuilder, x: Value) -> Value:
        """The sums of rows, in f32."""
        body = Cast(Arg(0, _BF16), _F32)
        return b.generic([x], [IndexMap.identity(2)], x.type.shape, body, reduced=1, combiner="add")

    def _held(self, b: GraphBuilder, seed: int) -> Value:
        name, size = f"w{seed}", self.side * self.side
        data = self._pool[61 * seed : 61 * seed + size].reshape(self.side, self.side)
        return b.constant(name, Constant.of(data, name), data.shape, _BF16)

    def branches(self, count: int, *, meeting: bool = False) -> Graph:
        """Chains with an input of their own; where they meet, every step also needs the neighbour's last."""
        b = GraphBuilder("branches")
        values = []
        for n in range(count):
            b.location = part(n)
            values.append(self.start(b, f"x{n}"))
        for step in range(self.steps):
            before = values
            values = []
            for n, x in enumerate(before):
                b.location = part(n)
                values.append(self.product(b, x, n * self.steps + step, before[n - 1] if meeting else None))
        ends = []
        for n, x in enumerate(values):
            b.location = part(n)
            ends.append(self.end(b, x))
        return b.build(ends)

    def stages(self, count: int) -> Graph:
        """One chain in stages of equal length."""
        b = GraphBuilder("stages")
        b.location = part(0)
        x = self.start(b, "x")
        for stage in range(count):
            b.location = part(stage)
            for step in range(self.steps):
                x = self.product(b, x, stage * self.steps + step)
        return b.build([self.end(b, x)])


def part(number: int) -> Location:
    """Where the ops of one device come from; pins name it."""
    return Location(f"part {number}")


def parts(devices: Sequence[str], side: int, steps: int) -> dict[str, Part]:
    """The cases on devices, by name."""
    chains, count = Chains(side, steps), len(devices)
    by_part = PlacementOptions(pins=tuple((part(n).text, device) for n, device in enumerate(devices)))
    one = chains.stages(1)
    many = {"requests": 32, "in_flight": count + 1}
    return {
        "branches": Part(chains.branches(count), one, by_part, goal=0.95),
        "exchange": Part(chains.branches(count, meeting=True), one, by_part),
        "pipeline": Part(chains.stages(count), one, by_part, **many, goal=0.9),  # type: ignore[arg-type]
        "split": Part(one, one, PlacementOptions(split="all"), goal=0.9, part=1 / count),
    }


def run(name: str, case: Part, devices: Sequence[str], runs: int) -> Result:
    """One case, beside the same work on the first device, and each part alone on every device."""
    inputs = [np.random.default_rng(n).standard_normal(case.graph.inputs[n].type.shape).astype(np.float32)
              for n in range(len(case.graph.inputs))]  # fmt: skip
    alone = []
    for device in devices:
        with compiled(case.alone, [device], PlacementOptions(fallback="error"), 1) as model:
            model(inputs[0])
            alone.append(measure(model, inputs[:1], 1, 1, runs)[0].latency_ms)
    with compiled(case.graph, devices[:1], PlacementOptions(fallback="error"), 1) as model:
        expected = _listed(model(*inputs))
        on_one = measure(model, inputs, 1, 1, runs)[0].latency_ms * case.requests
    with compiled(case.graph, devices, case.placement, case.in_flight) as model:
        for _ in range(8):  # shares settle
            check(model(*inputs), expected, 0.02)
        profiles = measure(model, inputs, case.requests, case.in_flight, runs)
        return result_of(
            name, profiles, max(alone) * case.part * case.requests, FROM_ALONE, goal=case.goal,
            alone_ms=dict(zip(devices, alone, strict=True)), on_one_device_ms=on_one,
            shares=[str(share) for share in model.shares],
            devices=[registry.open_device(device).info.name for device in devices],
        )  # fmt: skip


def _listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def cases() -> Iterator[tuple[str, Callable[[int], list[Result]]]]:
    """Every case by name; called with how many runs to take the shortest of."""
    gpus = [d for d in registry.devices() if d.driver == "vulkan" and d.kind != "software" and d.supported]
    if len(gpus) < 2:
        return
    devices = [info.id for info in gpus]
    for name in ("branches", "exchange", "pipeline", "split"):
        yield (
            f"gpus-{name}-{len(devices)}",
            lambda runs, n=name: [run(f"gpus-{n}", parts(devices, SIDE, STEPS)[n], devices, runs)],  # type: ignore[misc]
        )
