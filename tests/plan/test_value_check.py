"""What a plan says of its values is compared with itself: sizes, parts, weights, states, transfers, dims."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.plans.builder import PlanBuilder, there_and_back

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import ArtifactError, OutOfMemoryError
from mansard.plan.check import check_plan
from mansard.plan.constraints import ShapeConstraint
from mansard.plan.plan import Plan, TransferStep
from mansard.runtime.memory.tensors import empty

N = Dim("n", 1, 64)


def joined(**second) -> Plan:
    """An output made in two parts, of which ``second`` changes the other one."""
    b = PlanBuilder("d")
    x, y = b.input(), b.output()
    half = {"size": 12, "part_of": y}
    first = b.value(**half)
    other = b.value(**{**half, "part_offset": 12, **second})
    b.segment(0, b.step("scale", x, first, params=(2,)), b.step("scale", x, other, params=(3,)))
    return b.plan()


def with_states(*states) -> Plan:
    """States 1 and 2, of which call ``states`` says what becomes."""
    b = PlanBuilder("d")
    x, s, t = b.input(), b.value(kind="state"), b.value(kind="state")
    b.output(value=x)
    b.states += states or ((s, s), (t, t))
    return b.plan()


def moved(**changes) -> Plan:
    """`there_and_back` with a change of the transfer of its input."""
    plan = there_and_back().plan()
    cpu, gpu = plan.devices
    (segment,) = gpu.segments
    at = next(i for i, step in enumerate(segment.steps) if isinstance(step, TransferStep))
    steps = list(segment.steps)
    steps[at] = dataclasses.replace(steps[at], **changes)
    segment = dataclasses.replace(segment, steps=tuple(steps))
    return dataclasses.replace(plan, devices=(cpu, dataclasses.replace(gpu, segments=(segment,))))


def valued(plan: Plan, number: int, **changes) -> Plan:
    """The plan with fields of a value changed."""
    values = [dataclasses.replace(v, **changes) if v.id == number else v for v in plan.values]
    return dataclasses.replace(plan, values=tuple(values))


def of_dims(*symbols: Dim, shape=(6,)) -> Plan:
    b = PlanBuilder("d", symbols=symbols)
    b.output(value=b.input())
    plan = b.plan()
    size = dims.mul(dims.product(shape), 4)
    inputs = (dataclasses.replace(plan.inputs[0], shape=shape),)
    outputs = (dataclasses.replace(plan.outputs[0], shape=shape),)
    return valued(dataclasses.replace(plan, inputs=inputs, outputs=outputs), 0, bytes=size)


def test_plans_of_the_builder_pass():
    for plan in (joined(), with_states(), moved(), of_dims(), of_dims(N, shape=(dims.symbol(N),))):
        assert not check_plan(plan).open


def constrained(relation: str, name: str) -> Plan:
    n = dims.symbol(N)
    constraint = ShapeConstraint(n, relation, dims.symbol(Dim(name, 1, 64)))
    return dataclasses.replace(of_dims(N, shape=(n,)), constraints=(constraint,))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda: constrained("<=", "m"), "constraint 'n <= m' names dims that no input binds: m"),
        (lambda: constrained("=", "n"), "constraint 'n = n' is none of the relations <=, <, ==, !="),
        (lambda: joined(size=16), "ends behind value 1"),
        (lambda: joined(part_offset=8), "parts 2 and 3 of a value overlap: 12 and 8"),
        (lambda: joined(size=8), "the parts of value 1 are all of it: 20 and 24"),
        (lambda: joined(part_offset=-4), "the offset of value 3 .* is negative"),
        (lambda: joined(part_of=9), "names the missing value 9"),
        (lambda: joined(part_of=2), "is no whole of its device"),
        (lambda: joined(part_of=0), "only what a call makes is made in parts"),
        (lambda: valued(joined(), 1, bytes=1 << 62), "more than any memory"),
        (lambda: valued(joined(), 1, bytes=-24), "is negative"),
        (lambda: valued(joined(), 2, last=-1), "is used from epoch"),
        (lambda: valued(joined(), 2, weight=0), "weight of value 2"),
        (lambda: with_states((1, 1)), "kind state but no state names it"),
        (lambda: with_states((1, 1), (2, 2), (2, 2)), "or there twice"),
        (lambda: with_states((1, 2), (2, 1)), "takes the contents of another state"),
        (lambda: with_states((0, 1), (2, 2)), "is a value of kind input"),
        (lambda: moved(source=99), "missing value 99"),
        (lambda: moved(offset=4), "copies all of value 0"),
        (lambda: moved(bytes=20), r"fills value \d+: 20 and 24"),
        (lambda: moved(target=0), "fills a value of another device"),
        (lambda: moved(target=6), r"is the target of two transfers"),
        (lambda: valued(moved(), 5, part_of=7), r"fills value 5, which is a part of another|are all of it"),
        (lambda: of_dims(N), "dim 'n' is given by no input"),
        (lambda: of_dims(N, N, shape=(dims.symbol(N),)), "a dim twice"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(plan, message):
    from support.plans.builder import CPU, GPU, links

    from mansard.plan.layout import lay_out

    with pytest.raises(ArtifactError, match=message):
        checked = plan()
        check_plan(checked)
        lay_out(checked, links(*(CPU, GPU)[: len(checked.devices)]))


def test_inputs_are_there_once():
    plan = there_and_back().plan()
    twice = dataclasses.replace(plan, inputs=(*plan.inputs, plan.inputs[0]))
    with pytest.raises(ArtifactError, match="is there twice"):
        check_plan(twice)


def test_an_array_larger_than_memory_is_an_error_of_memory():
    for shape in ((1 << 50,), (1 << 62, 4)):
        for alignment in (1, 4096):
            with pytest.raises(OutOfMemoryError, match="an array of"):
                empty(shape, np.dtype(DType.F32.numpy), alignment)
