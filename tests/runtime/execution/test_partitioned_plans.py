"""Divided dispatches on devices of every kind: results, order, memory, copies, and checks of their plans."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_device import FORMAT, KERNELS, FakeDevice
from support.graphs import F32, binary, matmul, unary

from mansard import dims
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler.plan_builder import DeviceTarget, KernelRef, build_plan
from mansard.dims import Dim
from mansard.errors import ArtifactError
from mansard.ir import Constant, Graph, GraphBuilder
from mansard.ir.interpreter.graph import interpret, run_op
from mansard.passes.fusion.fuse import fuse
from mansard.passes.parallel.partition import DispatchPartition, axes, partition, take_views
from mansard.plan.check import check_plan
from mansard.plan.plan import ExecutableRef, SplitPiece, SplitSpec, WeightSpec
from mansard.plan.serialise import plan_from_json, plan_to_json

SIDE, UNIT = 64, 4
KINDS = {
    "cpu": {},
    "unified": {"late_binding": False},
    "discrete": {"unified": False, "late_binding": False, "import_host": False},
    "discrete, copies apart": {
        "unified": False, "late_binding": False, "import_host": False,
        "transfer_queue": True, "transfer_bytes": 1,
    },
    "discrete, imports": {
        "unified": False, "late_binding": False, "transfer_queue": True, "transfer_bytes": 1,
    },
}  # fmt: skip


def chain(kinds):
    """Products one after another: ``rows`` x W, ``exchange`` W x, ``both`` of the last two results; maps
    and sums between them."""
    b = GraphBuilder()
    x = b.input("x", (SIDE, SIDE), F32)
    before = x
    for number, kind in enumerate(kinds):
        data = np.random.default_rng(number).standard_normal((SIDE, SIDE)) / 8
        w = b.constant(f"w{number}", Constant.of(data.astype(np.float32)), (SIDE, SIDE), F32)
        factors = {"rows": (x, w), "exchange": (w, x), "both": (x, before)}.get(kind)
        if factors is not None:
            before, x = x, matmul(b, *factors)
        elif kind == "map":
            before, x = x, unary(b, "tanh", x)
        else:
            before, x = x, binary(b, "add", x, before)
    return b.build([x])


@dataclasses.dataclass
class Made:
    """A plan with what it needs to run, and what it computes."""

    graph: Graph
    plan: object
    resources: MemoryResources

    @contextlib.contextmanager
    def model(self, kinds) -> Iterator[Model]:
        names = [device.name for device in self.plan.devices]
        opened = {n: FakeDevice(n, **KINDS[k]) for n, k in zip(names, kinds, strict=True)}
        try:
            with Model(self.plan, self.resources, opened) as model:
                yield model
        finally:
            for device in opened.values():
                device.close()


def planned(graph, slots, initial, choose, along="rows") -> Made:
    """Every product divided over all slots with these extents; ``choose`` gives other dispatches a slot."""
    fused = fuse(graph)
    symbols = [Dim(f"part{i}", UNIT, SIDE - UNIT * (slots - 1), UNIT) for i in range(slots - 1)]
    first = [dims.symbol(dim) for dim in symbols]
    sizes = (*first, dims.add(SIDE, *(dims.mul(size, -1) for size in first)))
    chosen = {d: found for d in fused.dispatches if (found := axes(fused, d))}
    divisions = [
        DispatchPartition(d, found[0 if along == "rows" else -1], sizes) for d, found in chosen.items()
    ]
    made = partition(fused, divisions, symbols)
    divided = take_views(fuse(made.graph))
    maker = {v: d for d in divided.dispatches for v in d.outputs}
    pieces = [[maker[divided.base(v)] for v in results] for results in made.pieces]
    device_of = {piece: slot for own in pieces for slot, piece in enumerate(own)}
    device_of |= {d: choose() for d in divided.dispatches if d not in device_of}
    symbols_of = tuple(dims.symbol(dim) for dim in symbols)
    kernels, entries = {}, []
    for number, dispatch in enumerate(divided.dispatches):
        name = f"split{number}"
        KERNELS[name] = interpreted(dispatch, [dim.name for dim in symbols])
        kernels[dispatch] = KernelRef(0, name, symbols_of, (1, 1, 1))
        entries.append((name, len(dispatch.inputs) + len(dispatch.outputs), len(symbols), (1, 1, 1), 0))
    code = (ExecutableRef("code", FORMAT, "fake", (), tuple(entries)),)
    targets = [DeviceTarget(f"d{i}", f"d{i}", "fake", code) for i in range(slots)]
    read = {divided.whole(v) for d in divided.dispatches for v in d.inputs}
    weights = {v: c for v, c in made.graph.constants.items() if v in read}
    specs = {v: WeightSpec(v.name, v.type.dtype, v.type.shape) for v in weights}
    plan = build_plan(divided, device_of, kernels, targets, specs, (), {})
    labels = tuple(tuple(SplitPiece(i, piece.name) for i, piece in enumerate(own)) for own in pieces)
    plan = dataclasses.replace(plan, splits=(SplitSpec("rows", SIDE, sizes, initial, labels),))
    plan = plan_from_json(plan_to_json(plan))
    resources = MemoryResources({"code": b""}, [(specs[v], c.load) for v, c in weights.items()])
    return Made(graph, plan, resources)


def interpreted(dispatch, names):
    """A kernel that runs a dispatch's ops by the reference interpreter."""

    def run(buffers, params):
        sizes = dict(zip(names, params, strict=True))
        shapes = {v: v.type.concrete(sizes) for v in (*dispatch.inputs, *dispatch.outputs)}
        views = {
            v: memory[: 4 * int(np.prod(shapes[v]))].view(np.float32).reshape(shapes[v])
            for v, memory in zip((*dispatch.inputs, *dispatch.outputs), buffers, strict=True)
        }
        values = {v: views[v] for v in dispatch.inputs}
        for op in dispatch.ops:
            values.update(zip(op.outputs, run_op(op, [values[v] for v in op.inputs], sizes), strict=True))
        for value in dispatch.outputs:
            views[value][...] = values[value]

    return run


@settings(max_examples=60, deadline=None)
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
    made = planned(chain(steps), slots, initial, lambda: data.draw(st.integers(0, slots - 1)), along)
    check_plan(made.plan)
    devices = [data.draw(st.sampled_from(sorted(KINDS))) for _ in range(slots)]
    x = (np.random.default_rng(len(steps)).standard_normal((SIDE, SIDE)) / 8).astype(np.float32)
    (expected,) = interpret(made.graph, [x])
    with made.model(devices) as model:
        assert not model.dims
        for _ in range(3):  # whatever the shares become
            np.testing.assert_allclose(model(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_pieces_of_devices_that_share_memory_are_made_in_place():
    made = planned(chain(["rows", "exchange"]), 2, (24, 40), lambda: 0)
    with made.model(["unified", "unified"]) as model:
        model(np.ones((SIDE, SIDE), np.float32))
        assert (model.stats.device_copies, model.stats.host_copies) == (0, 3)  # two inputs, one output


def test_a_piece_is_copied_to_its_place_on_a_device_with_memory_of_its_own():
    made = planned(chain(["rows"]), 2, (24, 40), lambda: 0)
    with made.model(["cpu", "discrete"]) as model:
        model(np.ones((SIDE, SIDE), np.float32))
        row = SIDE * 4
        # The input to the second device; its piece, or the first one's, to where the other's is.
        assert model.stats.device_bytes - SIDE * row in (24 * row, 40 * row)


def test_a_device_is_given_the_rows_that_its_piece_reads():
    made = planned(chain(["map", "rows"]), 2, (24, 40), lambda: 0)
    with made.model(["cpu", "discrete"]) as model:
        model(np.ones((SIDE, SIDE), np.float32))
        rows = model.stats.device_bytes / (SIDE * 4)
        assert rows == 40 + 40  # those it reads, and those it makes


def test_what_only_the_same_piece_reads_is_not_handed_over():
    made = planned(chain(["rows", "map", "rows", "rows"]), 2, (24, 40), lambda: 0)
    assert [len(device.segments[0].steps) > 3 for device in made.plan.devices] == [True, True]
    waits = [wait for device in made.plan.devices for segment in device.segments for wait in segment.wait]
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
