"""One model for several GPUs: which of its variants is taken on which device, and the reason told."""

import dataclasses
import json

import numpy as np
import pytest
from support.graphs import F32, matmul, softmax
from typer.testing import CliRunner

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.cli.main import app
from mansard.compiler import CompileOptions, compile_graph
from mansard.drivers.vulkan.target_text import BASELINE
from mansard.errors import CompileError, TargetMismatchError
from mansard.hal.device import DeviceInfo
from mansard.ir import Constant, GraphBuilder
from mansard.placement import PlacementOptions
from mansard.runtime.devices import variants as runtime_variants
from mansard.runtime.devices.variants import best_variant, check_variants, choose_variant
from mansard.targets.gpus import known_gpus

RNG = np.random.default_rng(5)
TARGETS = "vulkan:mali-g715,hopper,ada,1.3"


def graph():
    weight = RNG.standard_normal((24, 40)).astype(np.float32)
    b = GraphBuilder()
    x, w = b.input("x", (9, 24), F32), b.constant("w", Constant.of(weight), weight.shape, F32)
    return b.build([softmax(b, matmul(b, x, w))])


@pytest.fixture(scope="module")
def model():
    options = CompileOptions(targets=(TARGETS,), placement=PlacementOptions(fallback="error"), cache=False)
    return compile_graph(graph(), options)


def device(name, gpu, index=0, without=()):
    """A device with the features and limits of a GPU of the table."""
    known = known_gpus()[gpu]
    features = dict.fromkeys(BASELINE | known.features, True) | dict.fromkeys(without, False)
    limits = {"workgroup_invocations": known.workgroup, "shared_memory": known.shared}
    return DeviceInfo("vulkan", index, name, "vulkan:1.3", kind=known.kind, features=features, limits=limits)


def present(monkeypatch, *infos):
    monkeypatch.setattr(runtime_variants, "present_devices", lambda: list(infos))


def target_of(plan):
    return plan.devices[0].target


def test_variants_are_ordered_by_what_they_use(model):
    targets = [target_of(plan) for plan in model.plan.with_variants()]
    assert targets == ["vulkan:hopper", "vulkan:ada", "vulkan:mali-g715", "vulkan:1.3"]


@pytest.mark.parametrize(
    ("name", "gpu", "taken", "reason"),
    [
        ("NVIDIA H200", "h200", "vulkan:hopper", "made for NVIDIA H200"),
        # The code for hopper runs there too, and comes first; this one is meant.
        ("NVIDIA GeForce RTX 4090", "rtx4090", "vulkan:ada", "made for NVIDIA GeForce RTX 4090"),
        ("Mali-G715-Immortalis MC11", "mali-g715", "vulkan:mali-g715", "made for Mali-G715-Immortalis MC11"),
    ],
)
def test_the_variant_meant_for_a_device_is_taken(monkeypatch, tmp_path, model, name, gpu, taken, reason):
    present(monkeypatch, device(name, gpu))
    assert target_of(choose_variant(model.plan)) == taken
    path = tmp_path / "m.mansard"
    Model(model.plan, MemoryResources(model.executables, model.weights)).save(path)
    explained = CliRunner().invoke(app, ["explain", str(path), "--json"])
    told = {row["target"]: row["reason"] for row in json.loads(explained.stdout)["variants"] if row["chosen"]}
    assert told == {taken: reason}
    shown = CliRunner().invoke(app, ["explain", str(path)]).stdout
    assert f"variant {taken}: chosen here: {reason}" in " ".join(shown.split())


def requiring(plan, *requires):
    """The plan with executables that need more."""
    (slot,) = plan.devices
    refs = tuple(dataclasses.replace(ref, requires=(*ref.requires, *requires)) for ref in slot.executables)
    return dataclasses.replace(plan, devices=(dataclasses.replace(slot, executables=refs),))


def test_a_device_nobody_meant_gets_the_first_that_runs(monkeypatch, model):
    first, *others = model.plan.with_variants()
    first = dataclasses.replace(requiring(first, "cooperative_matrix"), variants=())
    second = requiring(others[0], "shared_memory>=49152")
    plan = dataclasses.replace(first, variants=(second, *others[1:]))
    present(monkeypatch, device("Some GPU", "adreno"))
    assert target_of(choose_variant(plan)) == "vulkan:mali-g715"
    verdicts = check_variants(plan)
    assert "lacks cooperative_matrix" in verdicts[0].refusal
    assert "shared_memory>=49152" in verdicts[1].refusal
    assert best_variant(verdicts) is verdicts[2]
    assert not any(check.made_for for check in verdicts)


def test_the_first_device_that_runs_any_decides(monkeypatch, model):
    present(monkeypatch, device("NVIDIA GeForce RTX 4090", "rtx4090"), device("NVIDIA H200", "h200", 1))
    assert target_of(choose_variant(model.plan)) == "vulkan:ada"
    assert target_of(choose_variant(model.plan, ["vulkan:1"])) == "vulkan:hopper"


def test_a_device_that_runs_none_is_told_what_each_needs(monkeypatch, model):
    plans = [requiring(plan, "no_such_feature") for plan in model.plan.with_variants()]
    plan = dataclasses.replace(plans[0], variants=tuple(plans[1:]))
    present(monkeypatch, device("Some GPU", "adreno"))
    with pytest.raises(
        TargetMismatchError, match=r"vulkan:hopper: vulkan \(Some GPU\) lacks .*vulkan:1\.3: "
    ):
        choose_variant(plan)


def test_two_targets_with_variants_are_refused():
    with pytest.raises(CompileError, match="only one target may have variants"):
        compile_graph(graph(), CompileOptions(targets=("vulkan:h200,m2", "cpu:x86-64-v3,x86-64-v2")))
