"""Values that only one submission uses: their memory need not have them behind it."""

from support.plans.builder import CARD, CPU, PlanBuilder, links

from mansard.plan.layout import lay_out
from mansard.runtime.execution.submission import plan_submissions, unsplit
from mansard.runtime.execution.transient_stores import transient_stores


def transient(plan, *kinds):
    """The values in such stores, by number."""
    layout = lay_out(plan, links(*kinds))
    specs = plan_submissions(plan, layout, lambda slot, copy: False, unsplit)
    stores = transient_stores(plan, layout, specs)
    return {n for n, store in layout.of_value.items() if store in stores}


def test_values_between_kernels_of_one_submission():
    b = PlanBuilder("cpu")
    x, y, z = b.input(0), b.value(0), b.output(0)
    b.segment(0, b.step("scale", x, y, params=(2,)), b.step("scale", y, z, params=(2,)))
    assert transient(b.plan(), CPU) == {y}


def test_values_that_another_device_or_submission_reads():
    b = PlanBuilder("cpu", "card")
    x, y, y_card, z = b.input(0), b.value(0), b.value(1), b.value(1)
    b.segment(0, b.step("scale", x, y, params=(2,)))
    b.segment(
        1,
        b.move(y, y_card),
        b.step("scale", y_card, z, params=(2,)),
        b.step("scale", z, b.output(1), params=(2,)),
        wait=[(0, 0)],
    )
    found = transient(b.plan(), CPU, CARD)
    assert z in found and y not in found
