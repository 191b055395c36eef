"""Limits of memory hold for all that a device holds during one call, not for weights alone."""

import dataclasses

import numpy as np
import pytest
from support.graphs import F32, matmul, unary

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dims import Dim, symbol
from mansard.errors import PlacementError
from mansard.hal import registry
from mansard.ir import Constant, GraphBuilder
from mansard.placement import PlacementOptions
from mansard.placement.plan_memory import slot_memory
from mansard.targets.calibrated import keep
from mansard.targets.profile import DeviceProfile, LinkProfile

GPU = "vulkan:h200"
ROWS, WIDTH = 1024, 64
WIDE = (256, 4096, 128, 512)


def blocks(widths=WIDE, rows=ROWS):
    """Blocks of two products, with ``widths`` channels between the two: little weights, large values."""
    b = GraphBuilder("blocks")
    rng = np.random.default_rng(0)
    x = b.input("x", (rows, WIDTH), F32)
    for number, wide in enumerate(widths):
        for name, shape in ((f"a{number}", (WIDTH, wide)), (f"b{number}", (wide, WIDTH))):
            data = rng.uniform(-0.1, 0.1, shape).astype(np.float32)
            x = unary(b, "tanh", matmul(b, x, b.constant(name, Constant.of(data, name), shape, F32)))
    return b.build([x])


def compiled(limit=None, graph=None, targets=("cpu", GPU), **placement):
    limits = ((GPU, limit),) if limit is not None else ()
    options = CompileOptions(targets, PlacementOptions(memory=limits, search_seconds=1.0, **placement))
    return compile_graph(graph or blocks(), options).plan


def on_gpu(plan):
    numbers = {device.name: n for n, device in enumerate(plan.devices)}
    sizes = {dim.name: dim.typical for dim in plan.dims}
    used = slot_memory(plan, sizes, [device.name != GPU for device in plan.devices])[numbers[GPU]]
    return used, [decision.device == GPU for decision in plan.decisions]


def test_what_has_no_room_for_its_values_goes_elsewhere():
    free, everything = on_gpu(compiled())
    assert all(everything)
    largest = 4 * ROWS * max(WIDE)
    assert free.weights < largest < free.total
    limit = free.total - 1
    plan = compiled(limit)
    used, placed = on_gpu(plan)
    assert used.total <= limit
    # Only the two products around the widest values.
    assert placed == [True, True, False, False, True, True, True, True]
    told = {decision.reason for decision in plan.decisions if decision.device == "cpu"}
    (reason,) = told
    assert reason.startswith(f"{GPU}: no room for") and f"of {largest / 1e6:.4g} MB" in reason
    refusals = [decision.costs[GPU] for decision in plan.decisions if decision.device == "cpu"]
    assert all("no room for" in refusal for refusal in refusals)


@pytest.mark.parametrize("part", [0.6, 0.3, 0.15, 0.05, 0.01])
def test_every_limit_is_kept(part):
    free, _ = on_gpu(compiled())
    limit = int(free.total * part)
    used, _ = on_gpu(compiled(limit))
    assert used.total <= limit


def test_room_for_values_is_left_beside_weights():
    graph = blocks((2048,) * 6, rows=64)
    free, _ = on_gpu(compiled(graph=graph))
    assert free.activations < free.weights / 4
    limit = free.weights // 2 + 1
    used, placed = on_gpu(compiled(limit, graph))
    assert used.total <= limit
    # As many weights as fit: less than one product's more would.
    assert any(placed) and used.total > limit - 4 * 2048 * WIDTH - used.activations


def test_sizes_are_typical_ones():
    rows = symbol(Dim("rows", 1, 1 << 20, typical=ROWS))
    plan = compiled(4 * ROWS * 600, blocks((256, 512), rows))
    used, placed = on_gpu(plan)
    assert used.total <= 4 * ROWS * 600 and not all(placed)


def test_partitioned_dispatches_keep_limits_too():
    free, _ = on_gpu(compiled())
    limit = free.total // 4
    used, _ = on_gpu(compiled(limit, split="all"))
    assert used.total <= limit


def test_where_nothing_fits_the_numbers_are_told():
    with pytest.raises(PlacementError, match=r"no room for .* MB: vulkan:h200 may hold 10 MB"):
        compiled(10_000_000, targets=(GPU,), fallback="error")
    with pytest.raises(PlacementError, match=r"pinned to 'vulkan:h200' .* no room for .* MB"):
        compiled(10_000_000, pins=(("*", GPU),))


def test_devices_with_memory_of_their_own_hold_inputs_and_outputs_there():
    plan = compiled(targets=(GPU,), fallback="error")
    (shared,), (apart,) = slot_memory(plan, {}, [True]), slot_memory(plan, {}, [False])
    assert apart.weights == shared.weights
    assert apart.activations >= shared.activations >= 2 * 4 * ROWS * WIDTH
    assert dataclasses.replace(apart, activations=0).total == apart.weights


@pytest.mark.vulkan
def test_the_ledger_of_a_call_is_within_the_limit(monkeypatch, tmp_path):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    (info,) = [info for info in registry.devices("vulkan") if info.index == 0]
    link = LinkProfile(1e12, 1e-6)
    # By these figures everything belongs on the GPU.
    keep(info, DeviceProfile("fast", 1e13, 1e13, 0, {"f32": 1e15}, 0.0, link, True, measured="2026-01-02"))
    x = np.random.default_rng(1).uniform(-1, 1, (ROWS, WIDTH)).astype(np.float32)
    results, used = [], []
    for limit in (1 << 40, 6_000_000):
        placement = PlacementOptions(memory=(("vulkan", limit),), search_seconds=1.0)
        compiled = compile_graph(blocks((128, 2048)), CompileOptions(("cpu", "vulkan"), placement))
        with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
            results.append(model(x))
            uses = ("weights", "states", "activations", "inputs", "outputs")
            used.append(sum(r.bytes for r in model.memory() if r.device == "vulkan" and r.what in uses))
    assert used[0] > 6_000_000 >= used[1] > 0
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)
