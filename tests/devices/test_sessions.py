"""Sessions on real devices: the CPU, and the CPU together with a Vulkan device."""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import vulkan_kernels
from support.plans.device import (
    BYTES,
    CPU_GROUP,
    CPU_SPEC,
    IO,
    SIZES,
    N,
    add,
    cpu_model,
    reference,
    value,
)

from mansard.api import Model, load
from mansard.artifact.resources import MemoryResources
from mansard.dtypes import DType
from mansard.hal import ExecutableSpec
from mansard.hal.registry import devices
from mansard.plan.plan import (
    BarrierStep,
    BindingSpec,
    DeviceProgram,
    DispatchStep,
    Plan,
    Segment,
    TensorSpec,
    TransferStep,
    ValueSpec,
    WeightSpec,
)


def test_the_cpu_alone(tmp_path):
    model = cpu_model()
    for n in (*SIZES, 5):
        x = np.random.default_rng(n).random(n, dtype=np.float32)
        assert np.array_equal(model(x), x + x + x)
    assert model.stats.contexts == len(SIZES)
    assert model.stats.host_copies == 0
    model.save(tmp_path / "m")
    with load(tmp_path / "m") as loaded:
        assert np.array_equal(loaded(x), x + x + x)


def test_arrays_that_cannot_be_read_in_place_are_copied():
    model = cpu_model()
    x = np.arange(10, dtype=np.float32)
    for given in (x, x[::2], x[::-1], x.astype(">f4"), x):
        assert np.array_equal(model(given), np.asarray(given, np.float32) * 3)
    assert (model.stats.calls, model.stats.host_copies) == (5, 3)
    assert model.stats.host_bytes == 4 * (5 + 10 + 10)


def test_arrays_without_elements():
    none = (TensorSpec("x", DType.F32, (0,), 0),), (TensorSpec("y", DType.F32, (0,), 1),)
    values = (ValueSpec(0, "x", "input", 0, 0), ValueSpec(1, "y", "output", 0, 0))
    step = DispatchStep(0, "add", tuple(BindingSpec(v) for v in (0, 0, 1)), (0,), (1, 1, 1), "add")
    code = dataclasses.replace(reference(CPU_SPEC, "k0", CPU_GROUP, 0), contracts=())
    slot = DeviceProgram("cpu", "cpu", CPU_SPEC.target, (code,), (Segment((), (step,)),))
    plan = Plan("nothing", (), *none, values, (), (slot,))
    model = Model(plan, MemoryResources({"k0": bytes(CPU_SPEC.code)}, []))
    for _ in range(3):
        assert model(np.zeros(0, np.float32)).shape == (0,)


def test_threads_and_tasks_share_the_cpu():
    model = cpu_model()
    x = np.random.default_rng(1).random(3000, dtype=np.float32)

    def call(factor: int) -> bool:
        scaled = x * np.float32(factor)
        return np.array_equal(model(scaled), scaled + scaled + scaled)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(60)))

    async def main() -> list[np.ndarray]:
        return await asyncio.gather(*(model.run_async(x * np.float32(i)) for i in range(40)))

    for i, y in enumerate(asyncio.run(main())):
        scaled = x * np.float32(i)
        assert np.array_equal(y, scaled + scaled + scaled)
    assert model.stats.contexts <= 4


def test_profiles_are_on_the_hosts_clock():
    model = cpu_model()
    profile = model.profile(np.ones(1000, np.float32))
    assert [row[1] for row in profile.rows] == ["add 1", "add 2"]
    assert 0 < profile.busy_ms < profile.latency_ms


# With a Vulkan device ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vulkan_slot():
    if not any(info.driver == "vulkan" and info.supported for info in devices()):
        pytest.skip("no usable Vulkan device")
    return vulkan_kernels.spec(vulkan_kernels.ADD)


def mixed_model(spec: ExecutableSpec) -> Model:
    """cpu: t = 2x; vulkan: u = t + w; cpu: y = u + x."""
    group = spec.entries[0].workgroup[0]
    values = (
        value(0, "input", 0),
        value(1, "transient", 0),
        value(2, "output", 0),
        value(3, "transient", 1),
        dataclasses.replace(value(4, "constant", 1), bytes=4 << 20, weight=0),
        value(5, "transient", 1),
        value(6, "transient", 0),
    )
    cpu = DeviceProgram(
        "cpu",
        "cpu",
        CPU_SPEC.target,
        (reference(CPU_SPEC, "k0", CPU_GROUP),),
        (
            Segment((), (add(0, 0, 1, CPU_GROUP),)),
            Segment(((1, 0),), (TransferStep(5, 6, BYTES), add(6, 0, 2, CPU_GROUP))),
        ),
    )
    steps = (TransferStep(1, 3, BYTES), BarrierStep(), add(3, 4, 5, group))
    gpu = DeviceProgram(
        "vulkan", "vulkan", spec.target, (reference(spec, "k1", group),), (Segment(((0, 0),), steps),)
    )
    weight = WeightSpec("w", DType.F32, (1 << 20,))
    resources = MemoryResources(
        {"k0": bytes(CPU_SPEC.code), "k1": bytes(spec.code)}, [(weight, lambda: WEIGHT)]
    )
    return Model(Plan("mixed", (N,), *IO, values, (weight,), (cpu, gpu)), resources)


WEIGHT = np.random.default_rng(0).random(1 << 20, dtype=np.float32)


@pytest.fixture(params=["as it is", "as if it had memory of its own"])
def own_memory(request, vulkan_slot, monkeypatch):
    """The copies a discrete GPU needs, made by whatever device is here."""
    if request.param != "as it is":
        from mansard.hal.registry import open_device

        device = open_device("vulkan")
        apart = dataclasses.replace(device.capabilities, unified_memory=False)
        monkeypatch.setattr(device, "capabilities", apart)
    return request.param != "as it is"


@pytest.mark.vulkan
def test_cpu_and_vulkan_together(vulkan_slot, own_memory, tmp_path):
    model = mixed_model(vulkan_slot)
    for n in SIZES:
        x = np.random.default_rng(n).random(n, dtype=np.float32)
        assert np.allclose(model(x), 3 * x + WEIGHT[:n], rtol=1e-6)
    if own_memory:
        assert model.stats.device_copies == 2 * len(SIZES)
        assert model.stats.uploaded_bytes == 4 << 20
    model.save(tmp_path / "m")
    with load(tmp_path / "m") as loaded:
        assert np.array_equal(loaded(x), model(x))


@pytest.mark.vulkan
def test_many_calls_at_once_on_both(vulkan_slot, own_memory):
    model = mixed_model(vulkan_slot)

    async def main() -> None:
        rng = np.random.default_rng(3)
        xs = [rng.random(n, dtype=np.float32) for n in (100, 3000, 100, 7) * 5]
        for x, y in zip(xs, await asyncio.gather(*map(model.run_async, xs)), strict=True):
            assert np.allclose(y, 3 * x + WEIGHT[: x.size], rtol=1e-6)

    asyncio.run(main())
    profile = model.profile(np.ones(1000, np.float32))
    assert {row[0] for row in profile.rows} == {"cpu", "vulkan"}
    assert 0 < profile.critical_path_ms <= profile.bound_ms <= profile.latency_ms
