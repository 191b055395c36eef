"""Real models on CPU, on Vulkan and on both together, against PyTorch."""

import functools
import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support import zoo
from support.graph_runner import validate_spirv

import mansard

TOLERANCE = 1e-4
SLOW_VULKAN = [pytest.mark.vulkan, pytest.mark.slow]
DEVICES = [
    pytest.param(("cpu",), id="cpu"),
    pytest.param(("vulkan",), id="vulkan", marks=pytest.mark.vulkan),
    pytest.param(("cpu", "vulkan"), id="split", marks=pytest.mark.vulkan),
]


def need(devices):
    if "vulkan" in devices:
        usable = [i for i in mansard.devices() if i.driver == "vulkan" and i.supported]
        if not usable:
            pytest.skip("no Vulkan 1.3 device")


def compiled(model, devices):
    placement = (
        mansard.PlacementOptions(min_share=1 / 3)
        if len(devices) > 1
        else mansard.PlacementOptions(fallback="error")
    )
    if devices == ("cpu",):
        placement = mansard.PlacementOptions()
    options = {"dynamic_shapes": model.dynamic_shapes} if model.dynamic_shapes else {}
    ours = mansard.compile(model.module, model.args, devices=devices, placement=placement, **options)
    entries = [e.entry for d in ours.plan.devices for e in d.executables]
    validate_spirv(ours.plan, {entry: bytes(ours._resources.code(entry)) for entry in entries})
    return ours


def error(actual, expected):
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def reference(module, *args):
    with torch.no_grad():
        return module(*args)


MODELS = zoo.MODELS | {"mobilenet": functools.partial(zoo.mobilenet, repeated=False), "whole": zoo.mobilenet}


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        *(pytest.param("minilm", *p.values, id=f"minilm-{p.id}", marks=p.marks) for p in DEVICES),
        pytest.param("mobilenet", ("cpu",), id="mobilenet-cpu"),
        # A third of the split's dispatches at least are Vulkan's.
        pytest.param("mobilenet", ("vulkan",), id="mobilenet-vulkan", marks=SLOW_VULKAN),
        pytest.param("mobilenet", ("cpu", "vulkan"), id="mobilenet-split", marks=pytest.mark.vulkan),
        # MobileNetV2 repeats the blocks that are above once each.
        pytest.param("whole", ("cpu",), id="mobilenet-whole-cpu", marks=pytest.mark.slow),
        pytest.param("whole", ("vulkan",), id="mobilenet-whole-vulkan", marks=SLOW_VULKAN),
    ],
)
def test_models_match_pytorch(name, devices):
    need(devices)
    model = MODELS[name]()
    with compiled(model, devices) as ours:
        result = ours(*model.args)
        assert isinstance(result, torch.Tensor)
        assert error(result, reference(model.module, *model.args)) < TOLERANCE
        counts = ours.explain().totals
        assert set(counts) == set(devices)
        assert min(counts.values()) >= sum(counts.values()) / 3 or len(devices) == 1


@pytest.mark.slow  # tests/language has small models of every length
@pytest.mark.parametrize("devices", DEVICES)
def test_qwen3_with_one_artifact_for_every_length(devices, tmp_path):
    run_qwen3(devices, tmp_path, 10_000, (1, 2, 37, 128, 512) if devices == ("cpu",) else (1, 2, 37, 128))


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_qwen3_with_its_whole_vocabulary(devices, tmp_path):
    # The longest on the CPU alone: its logits take 311 MB, and lavapipe a minute.
    run_qwen3(devices, tmp_path, 151_936, (1, 2, 37, 128, 512) if devices == ("cpu",) else (1, 2, 37, 128))


def run_qwen3(devices, tmp_path, vocabulary, lengths):
    """One artifact for all lengths, against PyTorch; lengths outside the contract are refused."""
    need(devices)
    model = zoo.qwen3(vocabulary=vocabulary)
    with compiled(model, devices) as ours:
        ours.save(tmp_path / "qwen3.mansard")
    generator = torch.Generator().manual_seed(1)
    with mansard.load(tmp_path / "qwen3.mansard") as loaded:
        assert set(loaded.explain().totals) == set(devices)
        for length in lengths:
            ids = torch.randint(0, vocabulary, (1, length), generator=generator)
            assert error(loaded(ids), reference(model.module, ids)) < TOLERANCE
        too_long = torch.zeros(1, 513, dtype=torch.int64)
        with pytest.raises(mansard.ShapeContractError, match=r"input_ids.*'seq' is 513.*1 to 512"):
            loaded(too_long)


def test_batch_and_length_may_vary_together():
    model = zoo.minilm(layers=1)
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("seq", min=2, max=64)}
    shapes = {"input_ids": dims, "attention_mask": dims}
    with mansard.compile(model.module, model.args, devices="cpu", dynamic_shapes=shapes) as ours:
        for batch, length in ((1, 5), (3, 17), (8, 64)):
            ids = torch.randint(0, 2000, (batch, length), generator=torch.Generator().manual_seed(length))
            mask = torch.ones_like(ids)
            mask[:, length // 2 :] = 0
            mask[0] = 1
            expected = reference(model.module, ids, mask)
            assert error(ours(ids, mask), expected) < TOLERANCE


def test_compiling_minilm_takes_seconds():
    # Counted in processor time, which other load on the machine does not change.
    model = zoo.minilm()
    begin = time.process_time()
    compiled(model, ("cpu",)).close()
    assert time.process_time() - begin < 40  # 20 s on each of 2 cores


@pytest.mark.parametrize(
    "devices",
    # Most of a minute in a software driver; the split below calls the same device.
    [DEVICES[0], pytest.param(("vulkan",), id="vulkan", marks=SLOW_VULKAN), DEVICES[2]],
)
def test_two_threads_and_many_calls_in_flat_memory(devices):
    need(devices)
    model = zoo.minilm(batch=1, length=8, layers=1)
    expected = reference(model.module, *model.args).numpy()
    other = (model.args[0] + 1, model.args[1])
    expected_other = reference(model.module, *other).numpy()
    calls = 400 if devices == ("cpu",) else 100
    failures = []

    def loop(ours, args, wanted):
        errors = [error(ours(*args), wanted) for _ in range(calls // 2)]
        failures.extend(e for e in errors if not e < TOLERANCE)

    with compiled(model, devices) as ours:
        ours(*model.args)
        for _ in range(10):
            loop_threads(loop, ours, (model.args, expected), (other, expected_other), 0)
        gc.collect()
        before = resident()
        loop_threads(loop, ours, (model.args, expected), (other, expected_other), 1)
        gc.collect()
        growth = resident() - before
    assert not failures
    assert growth < 16e6, f"memory grew by {growth / 1e6:.1f} MB in {calls} calls"


def loop_threads(loop, ours, first, second, full):
    if not full:
        ours(*first[0])
        ours(*second[0])
        return
    threads = [threading.Thread(target=loop, args=(ours, *work)) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def resident():
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
