"""Plans that the plan builder makes of graphs, whole or with partitioned dispatches."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np

from mansard import dims
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler.planning.build import build_plan
from mansard.compiler.planning.inputs import DeviceTarget, KernelRef
from mansard.dims import Dim
from mansard.ir import Constant, Graph, GraphBuilder
from mansard.ir.interpreter.graph import run_op
from mansard.passes.fusion.fuse import fuse
from mansard.passes.parallel.partition import DispatchPartition, axes, partition, take_views
from mansard.plan.plan import (
    ExecutableRef,
    SplitPiece,
    SplitSpec,
    WeightSpec,
)
from mansard.plan.serialise import plan_from_json, plan_to_json
from support.fake_device import FORMAT, KERNELS, FakeDevice
from support.graphs import F32, binary, matmul, unary


def plan_of(fused, labels, devices=2):
    targets = [DeviceTarget(f"d{i}", f"d{i}", f"d{i}", ()) for i in range(devices)]
    kernels = {d: KernelRef(0, d.name, (), (1, 1, 1)) for d in fused.dispatches}
    constants = {
        v: WeightSpec(v.name, v.type.dtype, v.type.shape)
        for d in fused.dispatches
        for v in d.inputs
        if v in fused.graph.constants
    }
    device_of = dict(zip(fused.dispatches, labels, strict=True))
    return build_plan(fused, device_of, kernels, targets, constants, (), {})


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
    """Every product partitioned over all slots by extents; ``choose`` gives other dispatches a slot."""
    fused = fuse(graph)
    symbols = [Dim(f"part{i}", UNIT, SIDE - UNIT * (slots - 1), UNIT) for i in range(slots - 1)]
    first = [dims.symbol(dim) for dim in symbols]
    sizes = (*first, dims.add(SIDE, *(dims.mul(size, -1) for size in first)))
    chosen = {d: partition_axes for d in fused.dispatches if (partition_axes := axes(fused, d))}
    dispatch_partitions = [
        DispatchPartition(d, partition_axes[0 if along == "rows" else -1], sizes)
        for d, partition_axes in chosen.items()
    ]
    partitioned = partition(fused, dispatch_partitions, symbols)
    fused_parts = take_views(fuse(partitioned.graph))
    maker = {v: d for d in fused_parts.dispatches for v in d.outputs}
    pieces = [[maker[fused_parts.base(v)] for v in results] for results in partitioned.pieces]
    device_of = {piece: slot for group in pieces for slot, piece in enumerate(group)}
    device_of |= {d: choose() for d in fused_parts.dispatches if d not in device_of}
    symbols_of = tuple(dims.symbol(dim) for dim in symbols)
    kernels, entries = {}, []
    for number, dispatch in enumerate(fused_parts.dispatches):
        name = f"split{number}"
        KERNELS[name] = interpreted(dispatch, [dim.name for dim in symbols])
        kernels[dispatch] = KernelRef(0, name, symbols_of, (1, 1, 1))
        entries.append((name, len(dispatch.inputs) + len(dispatch.outputs), len(symbols), (1, 1, 1), 0))
    code = (ExecutableRef("code", FORMAT, "fake", (), tuple(entries)),)
    targets = [DeviceTarget(f"d{i}", f"d{i}", "fake", code) for i in range(slots)]
    read = {fused_parts.whole(v) for d in fused_parts.dispatches for v in d.inputs}
    weights = {v: c for v, c in partitioned.graph.constants.items() if v in read}
    specs = {v: WeightSpec(v.name, v.type.dtype, v.type.shape) for v in weights}
    plan = build_plan(fused_parts, device_of, kernels, targets, specs, (), {})
    labels = tuple(tuple(SplitPiece(i, piece.name) for i, piece in enumerate(group)) for group in pieces)
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
