"""CPU variants: what a target text lists, what the artifact keeps once, which variant is chosen."""

import json

import numpy as np
import pytest
from support.graphs import F32, maps, matmul, softmax
from typer.testing import CliRunner

import mansard
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.cli.main import app
from mansard.codegen.llvm import target as llvm_target
from mansard.compiler import CompileOptions, compile_graph
from mansard.compiler.targets import resolve_targets, variant_texts
from mansard.compiler.variants import SharedFiles
from mansard.dtypes import DType
from mansard.errors import ArtifactError, CompileError, DeviceUnavailableError, TargetMismatchError
from mansard.hal.device import DeviceInfo
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.panels import Panels
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.ir.types import TensorType, Value
from mansard.placement import PlacementOptions
from mansard.plan.check import check_plan
from mansard.plan.plan import WeightSpec
from mansard.plan.serialise import plan_from_json, plan_to_json
from mansard.runtime.devices import variants as runtime_variants
from mansard.runtime.devices.variants import check_variants, choose_variant

LEVELS = "cpu:x86-64-v2,x86-64-v4,cpu:x86-64-v3"
I8, I32, BF16 = DType.I8, DType.I32, DType.BF16
RNG = np.random.default_rng(5)


def graph():
    weight = RNG.standard_normal((24, 40)).astype(np.float32)
    b = GraphBuilder()
    x, w = b.input("x", (9, 24), F32), b.constant("w", Constant.of(weight), weight.shape, F32)
    return b.build([softmax(b, matmul(b, x, w))])


def compiled(*targets, source=None, fallback="error"):
    options = CompileOptions(targets=targets, placement=PlacementOptions(fallback=fallback), cache=False)
    return compile_graph(source or graph(), options)


@pytest.fixture(scope="module")
def levels():
    """A model with a variant for each of the levels."""
    return compiled(LEVELS)


def cpu(target):
    """A CPU with the features of a target."""
    parsed = llvm_target.parse(target)
    features = dict.fromkeys(parsed.features, True)
    return DeviceInfo("cpu", 0, "A CPU", parsed.executable_target, kind="cpu", features=features)


def only(monkeypatch, target):
    monkeypatch.setattr(runtime_variants, "present_devices", lambda: [cpu(target)])


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("cpu", ["cpu"]),
        ("vulkan:1", ["vulkan:1"]),
        ("cpu:znver4+avx512fp16", ["cpu:znver4+avx512fp16"]),
        ("cpu:x86_64+avx,+avx2", ["cpu:x86_64+avx,+avx2"]),
        ("cpu:host,-avx512f,x86-64-v2", ["cpu:host,-avx512f", "cpu:x86-64-v2"]),
        (LEVELS, ["cpu:x86-64-v2", "cpu:x86-64-v4", "cpu:x86-64-v3"]),
    ],
)
def test_a_comma_and_a_name_begin_another_variant(text, listed):
    assert variant_texts(text) == listed


def test_the_widest_variant_comes_first():
    (target,) = resolve_targets([LEVELS + ",x86-64-v3"], PlacementOptions(fallback="error"))
    names = [target.kernel.name, *(k.name for k in target.variants)]
    assert names == ["cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2"]


def test_one_target_has_variants():
    with pytest.raises(CompileError, match=r"only one target may have variants: join .* with a comma"):
        resolve_targets([LEVELS, "cpu:cortex-a55,cortex-a76"], PlacementOptions(fallback="error"))


def test_a_device_that_is_not_there_is_no_target():
    for text in ("cpu:3", "null:9"):
        with pytest.raises(DeviceUnavailableError, match=f"no device '{text}'; devices of driver"):
            resolve_targets([text], PlacementOptions())
    assert resolve_targets(["cpu:0"], PlacementOptions())[0].slot.name == "cpu:0"


def test_equal_weights_are_kept_once_and_each_variant_has_its_kernels(levels):
    plans = levels.plan.with_variants()
    assert [p.devices[0].target for p in plans] == ["cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2"]
    assert [spec.entry for spec, _ in levels.weights] == ["w"]
    entries = [{ref.entry for d in p.devices for ref in d.executables} for p in plans]
    assert len(set().union(*entries)) == sum(map(len, entries)) == len(levels.executables)
    assert plan_from_json(plan_to_json(levels.plan)) == levels.plan


@pytest.mark.parametrize(
    ("present", "chosen"),
    [("cpu:x86-64-v2", 2), ("cpu:x86-64-v3", 1), ("cpu:znver4", 0)],
)
def test_the_best_variant_the_cpu_can_run_is_chosen(monkeypatch, levels, present, chosen):
    plan = levels.plan
    only(monkeypatch, present)
    assert choose_variant(plan) is plan.with_variants()[chosen]
    refused = [bool(v.refusal) for v in check_variants(plan)]
    assert refused == [True] * chosen + [False] * (3 - chosen)


def test_a_cpu_that_can_run_none_is_told_what_each_needs(monkeypatch):
    plan = compiled("cpu:x86-64-v4,x86-64-v3,cortex-a76").plan
    only(monkeypatch, "cpu:x86-64-v2")
    with pytest.raises(TargetMismatchError) as error:
        choose_variant(plan)
    said = str(error.value)
    assert "cpu:x86-64-v3: cpu (A CPU) lacks avx, avx2" in said and "avx512f" in said
    assert "cpu:cortex-a76: cpu (A CPU) is cpu:x86_64, not cpu:aarch64" in said


def test_variants_of_two_architectures(monkeypatch):
    plan = compiled("cpu:x86-64-v3,neoverse-n1,cortex-a53").plan
    for present, target in [("cpu:cortex-a55", "cpu:neoverse-n1"), ("cpu:cortex-a72", "cpu:cortex-a53")]:
        only(monkeypatch, present)
        assert choose_variant(plan).devices[0].target == target


def test_every_variant_runs_and_matches(tmp_path):
    source = graph()
    model = compiled("cpu:x86-64-v2,x86-64", source=source)
    inputs = [RNG.standard_normal((9, 24)).astype(np.float32)]
    Model(model.plan, MemoryResources(model.executables, model.weights)).save(tmp_path / "m.mansard")
    for plan in model.plan.with_variants():
        with Model(plan, MemoryResources(model.executables, model.weights)) as one:
            np.testing.assert_allclose(one(*inputs), interpret(source, inputs)[0], rtol=1e-5, atol=1e-6)
    with mansard.load(tmp_path / "m.mansard", verify="full") as loaded:
        assert loaded.bind().plan.devices[0].target == "cpu:x86-64-v2"
        np.testing.assert_allclose(loaded(*inputs), interpret(source, inputs)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "accumulator"), [(I8, I32), (BF16, F32), (F32, F32)])
def test_cpus_share_packed_weights(dtype, accumulator):
    rows = (RNG.standard_normal((64, 96)) * 5).astype(dtype.numpy)
    b = GraphBuilder()
    x, w = b.input("x", (40, 96), dtype), b.constant("w", Constant.of(rows), rows.shape, dtype)
    a, c = (Arg(i, dtype) if dtype is accumulator else Cast(Arg(i, dtype), accumulator) for i in (0, 1))
    body = Apply("mul", (a, c), accumulator)
    y = b.generic([x, w], [maps(0, 2), maps(1, 2)], (40, 64, 96), body, reduced=1, combiner="add")
    model = compiled("cpu:x86-64-v3,znver4,cortex-a76,neoverse-v1,rv64gcv", source=b.build([y]))
    assert len(model.plan.variants) == 4 and len(model.weights) == 1
    ((spec, load),) = model.weights
    assert spec.shape != rows.shape and load().shape == spec.shape


def test_constants_packed_in_different_ways_are_different_entries():
    value = Value("w", TensorType(F32, (8, 32)))
    narrow, wide = (Panels((32, 1), ((8, 32),), width) for width in (16, 32))
    files = SharedFiles()

    def add(panels):
        packed = {value: panels} if panels else {}
        spec = WeightSpec("w", F32, panels.shape if panels else (8, 32))
        return files.add_weights({value: (spec, lambda: None)}, packed)[value]

    entries = [add(panels).entry for panels in (narrow, wide, narrow, None, wide)]
    assert entries == ["w", "w.form1", "w", "w.form2", "w.form1"]
    assert [spec.shape for spec, _ in files.weights.values()] == [narrow.shape, wide.shape, (8, 32)]


def test_a_variant_with_other_inputs_is_refused(levels):
    plan = levels.plan
    data = json.loads(plan_to_json(plan))
    data["variants"][0]["inputs"][0]["name"] = "y"
    with pytest.raises(ArtifactError, match="other inputs"):
        check_plan(plan_from_json(json.dumps(data)))
    data = json.loads(plan_to_json(plan))
    data["variants"][0]["variants"] = [data["variants"][1]]
    with pytest.raises(ArtifactError, match="has variants"):
        check_plan(plan_from_json(json.dumps(data)))


def test_the_command_line_says_which_variant_runs_here(tmp_path, monkeypatch):
    model = compiled("cpu:x86-64-v4,x86-64-v3")
    path = tmp_path / "m.mansard"
    Model(model.plan, MemoryResources(model.executables, model.weights)).save(path)
    only(monkeypatch, "cpu:x86-64-v3")
    explained = CliRunner().invoke(app, ["explain", str(path)])
    assert "variant cpu:x86-64-v3: chosen here" in explained.stdout
    assert "variant cpu:x86-64-v4: cpu (A CPU) lacks avx512" in explained.stdout
    listed = json.loads(CliRunner().invoke(app, ["devices", "--artifact", str(path), "--json"]).stdout)
    assert [v["chosen"] for v in listed["variants"]] == [False, True] and listed["devices"]
