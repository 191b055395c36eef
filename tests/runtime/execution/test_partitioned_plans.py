"""Partitioned dispatches on devices of every kind: results, order, memory, copies, and checks of their
plans."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.compiled import KINDS, SIDE, UNIT, chain, planned

from mansard import dims
from mansard.dims import Dim
from mansard.errors import ArtifactError
from mansard.ir.interpreter.graph import interpret
from mansard.plan.check import check_plan


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_pieces_on_devices_of_any_kind_compute_the_whole(data):
    kinds = st.sampled_from(["rows", "exchange", "both", "map", "sum"])
    steps = ["rows", *data.draw(st.lists(kinds, max_size=5))]
    slots = data.draw(st.integers(2, 3))
    cuts = sorted(
        data.draw(st.sets(st.integers(1, SIDE // UNIT - 1), min_size=slots - 1, max_size=slots - 1))
    )
    edges = [0, *(cut * UNIT for cut in cuts), SIDE]
    initial = tuple(b - a for a, b in itertools.pairwise(edges))
    along = data.draw(st.sampled_from(["rows", "columns"]))
    partitioned = planned(chain(steps), slots, initial, lambda: data.draw(st.integers(0, slots - 1)), along)
    check_plan(partitioned.plan)
    devices = [data.draw(st.sampled_from(sorted(KINDS))) for _ in range(slots)]
    x = (np.random.default_rng(len(steps)).standard_normal((SIDE, SIDE)) / 8).astype(np.float32)
    (expected,) = interpret(partitioned.graph, [x])
    with partitioned.model(devices) as model:
        assert not model.dims
        for _ in range(3):  # whatever the shares become
            np.testing.assert_allclose(model(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_pieces_of_devices_that_share_memory_are_made_in_place():
    partitioned = planned(chain(["rows", "exchange"]), 2, (24, 40), lambda: 0)
    with partitioned.model(["unified", "unified"]) as model:
        model(np.ones((SIDE, SIDE), np.float32))
        assert (model.stats.device_copies, model.stats.host_copies) == (0, 3)  # two inputs, one output


def test_a_piece_is_copied_to_its_place_on_a_device_with_memory_of_its_own():
    partitioned = planned(chain(["rows"]), 2, (24, 40), lambda: 0)
    with partitioned.model(["cpu", "discrete"]) as model:
        model(np.ones((SIDE, SIDE), np.float32))
        row = SIDE * 4
        # The input to the second device; its piece, or the first one's, to where the other's is.
        assert model.stats.device_bytes - SIDE * row in (24 * row, 40 * row)


def test_a_device_is_given_the_rows_that_its_piece_reads():
    partitioned = planned(chain(["map", "rows"]), 2, (24, 40), lambda: 0)
    with partitioned.model(["cpu", "discrete"]) as model:
        model(np.ones((SIDE, SIDE), np.float32))
        rows = model.stats.device_bytes / (SIDE * 4)
        assert rows == 40 + 40  # those it reads, and those it makes


def test_what_only_the_same_piece_reads_is_not_handed_over():
    partitioned = planned(chain(["rows", "map", "rows", "rows"]), 2, (24, 40), lambda: 0)
    assert [len(device.segments[0].steps) > 3 for device in partitioned.plan.devices] == [True, True]
    waits = [
        wait for device in partitioned.plan.devices for segment in device.segments for wait in segment.wait
    ]
    first = [(slot, 0) for slot in (0, 1)]
    assert set(waits) <= set(first)  # only the parts of the result meet, at the end


# Checks -------------------------------------------------------------------------------------------


def changed(plan, **changes):
    (split,) = plan.splits
    return dataclasses.replace(plan, splits=(dataclasses.replace(split, **changes),))


def test_plans_with_unsound_splits_are_refused():
    plan = planned(chain(["rows"]), 2, (24, 40), lambda: 0).plan
    check_plan(plan)
    (split,) = plan.splits
    (pieces,) = split.dispatches
    stray = dims.symbol(Dim("stray", 4, 60, 4))
    wrong = {
        "unknown dims: stray": {"sizes": (stray, dims.add(SIDE, dims.mul(stray, -1)))},
        "do not sum up to 64": {"initial": (24, 24)},
        "has 3 shares for 2 pieces": {"initial": (24, 24, 16)},
        "has 1 pieces, not 2": {"dispatches": (pieces[:1],)},
        "device slot of piece": {"dispatches": ((pieces[0], dataclasses.replace(pieces[1], device=7)),)},
        "missing dispatch 'nothing'": {
            "dispatches": ((pieces[0], dataclasses.replace(pieces[1], label="nothing")),)
        },
    }
    for message, changes in wrong.items():
        with pytest.raises(ArtifactError, match=message):
            check_plan(changed(plan, **changes))


def test_parts_belong_to_a_whole_of_their_device():
    plan = planned(chain(["rows"]), 2, (24, 40), lambda: 0).plan
    part = next(v for v in plan.values if v.part_of is not None)
    for whole, message in ((999, "missing value 999"), (part.id, "no whole of its device")):
        values = [dataclasses.replace(v, part_of=whole) if v is part else v for v in plan.values]
        with pytest.raises(ArtifactError, match=message):
            check_plan(dataclasses.replace(plan, values=tuple(values)))
