"""Copies between devices that no kernel of their call could overlap with."""

from support.plans.builder import CARD, CPU, PlanBuilder, links

from mansard.plan.layout import lay_out
from mansard.runtime.execution.copy_overlap import copies_without_overlap


def lonely(plan, *kinds):
    return {copy.label for copy in copies_without_overlap(plan, lay_out(plan, links(*kinds)))}


def chain(*, overlap_fetch=False, overlap_send=False):
    """The CPU makes a value, the card another of it, the CPU an output of that. As asked, the card has
    kernels that wait for nothing, before or behind."""
    b = PlanBuilder("cpu", "card")
    x, card_input = b.input(0), b.input(1)
    a, y = b.value(0), b.value(1)
    a_card, y_cpu = b.value(1), b.value(0)
    b.segment(0, b.step("scale", x, a, params=(2,), label="a"))
    number = 0
    if overlap_fetch:
        b.segment(1, b.step("scale", card_input, b.output(1), params=(2,), label="before"))
        number = 1
    b.segment(1, b.move(a, a_card), b.step("scale", a_card, y, params=(2,), label="y"), wait=[(0, 0)])
    if overlap_send:
        b.segment(1, b.step("scale", card_input, b.output(1), params=(2,), label="behind"))
    z = b.output(0)
    b.segment(0, b.move(y, y_cpu), b.step("scale", y_cpu, z, params=(2,), label="z"), wait=[(1, number)])
    return b.plan()


def test_in_a_chain_of_devices_nothing_overlaps_with_copies():
    assert lonely(chain(), CPU, CARD) == {"transfer v2", "transfer v3"}


def test_kernels_before_and_behind_overlap_with_copies():
    assert lonely(chain(overlap_fetch=True), CPU, CARD) == {"transfer v3"}
    assert lonely(chain(overlap_send=True), CPU, CARD) == {"transfer v2"}


def test_what_waits_for_the_reader_does_not_overlap():
    b = PlanBuilder("cpu", "card")
    x = b.input(1)
    y, y_cpu, z, z_card = b.value(1), b.value(0), b.value(0), b.value(1)
    b.segment(1, b.step("scale", x, y, params=(2,), label="y"))
    b.segment(0, b.move(y, y_cpu), b.step("scale", y_cpu, z, params=(2,), label="z"), wait=[(1, 0)])
    b.segment(
        1, b.move(z, z_card), b.step("scale", z_card, b.output(1), params=(2,), label="w"), wait=[(0, 0)]
    )
    assert lonely(b.plan(), CPU, CARD) == {"transfer v1", "transfer v3"}


def test_a_kernel_behind_in_the_same_segment_overlaps_with_a_send():
    b = PlanBuilder("cpu", "card")
    x = b.input(1)
    y, y_cpu = b.value(1), b.value(0)
    b.segment(
        1,
        b.step("scale", x, y, params=(2,), label="y"),
        b.step("scale", y, b.output(1), params=(2,), label="w"),
    )
    z = b.output(0)
    b.segment(0, b.move(y, y_cpu), b.step("scale", y_cpu, z, params=(2,), label="z"), wait=[(1, 0)])
    assert lonely(b.plan(), CPU, CARD) == set()


def test_inputs_and_outputs_are_not_between_devices():
    b = PlanBuilder("card")
    b.segment(0, b.step("scale", b.input(), b.output(), params=(2,), label="y"))
    assert lonely(b.plan(), CARD) == set()
