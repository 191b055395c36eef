"""Random plans over random devices give what NumPy gives: transfers, arenas, copies, inputs, outputs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_device import FakeDevice
from support.plans.builder import PlanBuilder
from support.races import races

from mansard.api import Model
from mansard.errors import ExecutionError
from mansard.plan.plan import BarrierStep, DispatchStep, Segment, Step, ValueSpec

APART = {"transfer_queue": True, "transfer_bytes": 1}
KINDS = {
    "cpu": {},
    "unified": {"unified": True, "late_binding": False},
    "unified, no import": {"unified": True, "late_binding": False, "import_host": False},
    "discrete": {"unified": False, "late_binding": False, "import_host": False},
    "discrete, copies apart": {"unified": False, "late_binding": False, "import_host": False} | APART,
    "discrete, imports": {"unified": False, "late_binding": False} | APART,
    "discrete, the caller's arrays": {"unified": False} | APART,
    "unified, copies apart": {"unified": True, "late_binding": False, "import_host": False} | APART,
}


@dataclass
class _Queue:
    """The segments of one slot while they grow: waits and steps."""

    segments: list[tuple[list[tuple[int, int]], list[Step]]] = field(default_factory=list)
    epoch: int = 0


@dataclass
class RandomPlan:
    """A plan, and what it computes as NumPy functions of the inputs."""

    builder: PlanBuilder
    ops: list[tuple[str, int, tuple[int, ...]]]
    outputs: list[int]


@st.composite
def plans(draw) -> RandomPlan:
    slots = draw(st.integers(1, 3))
    b = PlanBuilder(*(f"d{i}" for i in range(slots)))
    queues = [_Queue() for _ in range(slots)]
    where: dict[tuple[int, int], int] = {}  # (node, slot): value id
    producers: dict[int, tuple[int, int] | None] = {}  # node: slot and segment
    ops: list[tuple[str, int, tuple[int, ...]]] = []
    uses: dict[int, list[int]] = {}  # value id: epochs

    def slot() -> int:
        return draw(st.integers(0, slots - 1))

    for _ in range(draw(st.integers(1, 2))):
        node, home = len(ops), slot()
        ops.append(("input", len(b.inputs), ()))
        where[node, home], producers[node] = b.input(home), None
    for _ in range(draw(st.integers(0, 2))):
        node = len(ops)
        ops.append(("constant", node + 3, ()))
        weight = len(b.weights)
        for s in range(slots):
            where[node, s] = b.constant(np.full(6, node + 3), s, weight=weight if s else None)
        producers[node] = None
    for _ in range(draw(st.integers(3, 14))):
        node, here = len(ops), slot()
        kind = draw(st.sampled_from(["add", "scale"]))
        args = tuple(draw(st.integers(0, node - 1)) for _ in range(2 if kind == "add" else 1))
        queue, steps, waits = queues[here], [], []
        for arg in set(args):
            if (arg, here) not in where:
                source = next(v for (n, _), v in where.items() if n == arg and v is not None)
                where[arg, here] = target = b.value(here)
                steps.append(b.move(source, target))
                b.values[source] = _kept(b.values[source])
                if producers[arg] is not None:
                    waits.append(producers[arg])
        out = b.value(here)
        values = [where[a, here] for a in args]
        params = (2,) if kind == "scale" else None
        steps.append(b.step(kind, *values, out, params=params))
        if waits or steps[:-1] or not queue.segments or draw(st.booleans()):
            queue.epoch += bool(queue.segments)
            queue.segments.append((waits, []))
        for value in (*values, out):
            uses.setdefault(value, []).append(queue.epoch)
        queue.segments[-1][1].extend([*steps, BarrierStep()])
        queue.epoch += 1
        ops.append((kind, 2, args))
        where[node, here], producers[node] = out, (here, len(queue.segments) - 1)
    for value, epochs in uses.items():
        spec = b.values[value]
        if spec.kind == "transient" and spec.last != 1 << 30:
            b.values[value] = replace(spec, first=min(epochs), last=max(epochs))
    used = {arg for _, _, args in ops for arg in args}
    outputs = [node for node in range(len(ops)) if node not in used]  # so that every op matters
    outputs += draw(st.lists(st.integers(0, len(ops) - 1), max_size=2))
    for node in outputs:
        value = next(v for (n, _), v in where.items() if n == node)
        if b.values[value].kind == "transient":
            b.values[value] = replace(b.values[value], kind="output")
        b.output(value=value)
    b.segments = [[Segment(tuple(w), tuple(s)) for w, s in q.segments] for q in queues]
    return RandomPlan(b, ops, outputs)


def _kept(spec: ValueSpec) -> ValueSpec:
    """A value other devices use lives through the whole call."""
    return replace(spec, first=0, last=1 << 30) if spec.kind == "transient" else spec


def expected(plan: RandomPlan, inputs: list[np.ndarray]) -> list[np.ndarray]:
    nodes: list[np.ndarray] = []
    for kind, number, args in plan.ops:
        if kind == "input":
            nodes.append(inputs[number])
        elif kind == "constant":
            nodes.append(np.full(6, number, np.float32))
        elif kind == "add":
            nodes.append(nodes[args[0]] + nodes[args[1]])
        else:
            nodes.append(nodes[args[0]] * np.float32(number))
    return [nodes[n] for n in plan.outputs]


@settings(max_examples=60, deadline=None)
@given(plan=plans(), data=st.data())
def test_random_plans_compute_what_numpy_does(plan, data):
    b = plan.builder
    kinds = [data.draw(st.sampled_from(sorted(KINDS)), label=name) for name in b.slots]
    devices = [FakeDevice(name, **KINDS[kind]) for name, kind in zip(b.slots, kinds, strict=True)]
    try:
        model = Model(b.plan(), b.resources(), dict(zip(b.slots, devices, strict=True)))
        sets = [[np.arange(6, dtype=np.float32) + 10 * i + k for k in range(len(b.inputs))] for i in range(4)]

        async def concurrently() -> list:
            return await asyncio.gather(*(model.run_async(*inputs) for inputs in sets))

        for got, inputs in zip(
            [model(*sets[0]), *asyncio.run(concurrently())], [sets[0], *sets], strict=True
        ):
            results = got if isinstance(got, tuple) else (got,)
            for y, want in zip(results, expected(plan, inputs), strict=True):
                assert np.array_equal(y, want)
        assert [race for context in model.bind()._calls.contexts() for race in races(context)] == []
        model.close()
        assert all(device.live == 0 for device in devices)
    finally:
        for device in devices:
            device.close()


@settings(max_examples=25, deadline=None)
@given(plan=plans(), data=st.data())
def test_random_plans_in_which_a_kernel_fails_leave_nothing_behind(plan, data):
    b = plan.builder
    slot = data.draw(st.sampled_from([n for n, local in enumerate(b.segments) if local]))
    number = data.draw(st.integers(0, len(b.segments[slot]) - 1))
    segment = b.segments[slot][number]
    used = next(step for step in segment.steps if isinstance(step, DispatchStep)).bindings[-1].value
    steps = (*segment.steps, b.step("explode", used, params=()), BarrierStep())
    b.segments[slot][number] = replace(segment, steps=steps)
    kinds = [data.draw(st.sampled_from(sorted(KINDS)), label=name) for name in b.slots]
    devices = [FakeDevice(name, **KINDS[kind]) for name, kind in zip(b.slots, kinds, strict=True)]
    inputs = [np.arange(6, dtype=np.float32)] * len(b.inputs)
    try:
        model = Model(b.plan(), b.resources(), dict(zip(b.slots, devices, strict=True)))
        for _ in range(2):
            with pytest.raises(ExecutionError, match="exploded"):
                model(*inputs)

        async def concurrently() -> list:
            return await asyncio.gather(*(model.run_async(*inputs) for _ in range(4)), return_exceptions=True)

        assert all(isinstance(error, ExecutionError) for error in asyncio.run(concurrently()))
        model.close()
        assert all(device.live == 0 for device in devices)
    finally:
        for device in devices:
            device.close()
