"""GPU schedule of products that read one large operand once: a matrix times one vector or a few.

A workgroup computes some outputs of every row, its invocations share the reduced dim, and they add what
they found through subgroups and workgroup memory. Where the operand lies along the reduced dim:

    for chunk in my share of the reduced dim:          one load of 16 bytes for each column
        for column in my columns, for row in rows:     x is read once for all columns
            sums[row][column] += x[row, chunk] . w[column, chunk]
    y[row, column] = epilogue(sum over invocations of sums[row][column])

and where it lies along the outputs, with a vector of them in every load:

    for k in my share of the reduced dim:
        for row in rows: sums[row][0:8] += x[row, k] * w[k, column:column + 8]

No subgroup size is assumed: what a subgroup has added, its first invocation writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mansard.codegen.backend import KernelTarget
from mansard.codegen.nest import Nest
from mansard.codegen.schedules.base import Frame, Scheduled, estimate, power_of_two_below
from mansard.codegen.schedules.gpu.gemv_form import Form, analyse, chunk_of, rows_of
from mansard.codegen.schedules.gpu.gemv_sums import LANES, Across, Along, Plan
from mansard.codegen.schedules.parameters import Parameters

WIDTH = 128
LEAST_SECTOR = 32
"""Bytes that memory moves at least: what neighbours read of a row in one piece."""
MOST_SUMS = 64
"""Accumulators of one invocation, in registers."""


def applies(nest: Nest) -> bool:
    """Whether the nest is a product that reads its large operand once."""
    return analyse(nest) is not None


def schedule(nest: Nest, target: KernelTarget, name: str, parameters: Parameters | None = None) -> Scheduled:
    """The kernel of a nest to which `applies`; ``parameters`` are one of `candidates`."""
    form = _form(nest)
    plan = Plan(**parameters.to_dict()) if parameters else default_plan(nest, form, target)
    maker = Along if form.along else Across
    return maker(Frame(nest, target, name, plan.width), form, plan).run()


def candidates(nest: Nest, target: KernelTarget) -> list[Parameters]:
    """What to try, the default first."""
    form = _form(nest)
    first = default_plan(nest, form, target)
    found = {first: None}
    widths = {w for w in (32, 64, 128, 256) if w <= target.workgroup_invocations} | {first.width}
    for width in sorted(widths):
        splits = {min(width, first.split), width} if form.along else {width // k for k in (4, 8, 16)}
        for split in sorted(splits):
            for columns in _columns(form, first):
                for unroll in (1, 2, 4):
                    plan = Plan(width, split, columns, unroll)
                    if _fits(nest, form, plan, target):
                        found[plan] = None
    return [plan.parameters() for plan in found]


def default_plan(nest: Nest, form: Form, target: KernelTarget) -> Plan:
    """Few columns where there is little to read, so that the whole device reads; more where it is much."""
    width = power_of_two_below(min(WIDTH, target.workgroup_invocations))
    outputs = estimate(nest.total([loop for g in (form.column, *form.rest) for loop in g]))
    wide = chunk_of(nest, form)
    if form.along:
        steps = -(-estimate(nest.total(form.root.inner)) // wide)
        split = min(width, 1 << max(0, (steps - 1).bit_length()))
        plan = Plan(width, split, 4, 1)
        while plan.columns > 1 and (
            outputs * split // plan.columns < 2 * target.resident_invocations
            or not _fits(nest, form, plan, target)
        ):
            plan = dataclasses.replace(plan, columns=plan.columns // 2)
        share = -(-steps // split)
        unroll = next((u for u in (4, 2) if u * plan.columns <= 8 and share % u == 0), 1)
        return dataclasses.replace(plan, unroll=unroll if share <= unroll * 64 else 1)
    columns = wide
    size = form.large.value.type.dtype.bits
    across = max(1, -(-LEAST_SECTOR * 8 // (columns * size)))
    while across < width // 8 and outputs // (across * columns) > 4 * target.compute_units:
        across *= 2
    plan = Plan(width, max(1, width // across), columns, 4)
    while not _fits(nest, form, plan, target) and plan.columns > 1:
        plan = dataclasses.replace(plan, columns=plan.columns // 2)
    return plan


def _form(nest: Nest) -> Form:
    form = analyse(nest)
    assert form is not None, "the schedule does not apply"
    return form


def _columns(form: Form, first: Plan) -> Sequence[int]:
    return (1, 2, 4, 8) if form.along else (first.columns, max(1, first.columns // 2))


def _fits(nest: Nest, form: Form, plan: Plan, target: KernelTarget) -> bool:
    """Whether the accumulators fit into registers, and what invocations exchange into workgroup memory."""
    cells = rows_of(nest, form) * plan.columns
    sums = cells * (min(LANES, chunk_of(nest, form)) if form.along else 1)
    exchanged = 4 * cells * plan.width
    return sums <= MOST_SUMS and exchanged <= target.shared_memory_bytes and plan.width % plan.split == 0
