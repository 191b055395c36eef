"""Tuning: other kernels, the same results, kept in the artifact and in the cache."""

import dataclasses
import json

import numpy as np
import pytest

import mansard
from mansard.api import Model
from mansard.artifact.resources import MemoryResources, read_artifact
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules import candidates, schedule
from mansard.compiler import CompileOptions, compile_graph
from mansard.compiler.kernels import KernelCompiler
from mansard.compiler.sources import sources_from_bytes
from mansard.compiler.targets import backend, resolve_targets
from mansard.compiler.tuned import Tuned, device_here, tuned_here
from mansard.dims import Dim, symbol
from mansard.dtypes import DType
from mansard.errors import ArtifactError, CompileError
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.panels import Panels
from mansard.ir.scalar import Apply, Arg
from mansard.placement import PlacementOptions
from mansard.tuning.rebuild import unpack, with_parameters

F32 = DType.F32


def network(rows=24):
    """Two products with weights, an activation between them."""
    b = GraphBuilder()
    x = b.input("x", (rows, 40), F32)
    random = np.random.default_rng(3)
    for i, (k, n) in enumerate([(40, 72), (72, 40)]):
        data = (random.standard_normal((k, n)) / 8).astype(np.float32)
        w = b.constant(f"w{i}", Constant.of(data, f"w{i}"), (k, n), F32)
        body = Apply("mul", (Arg(0, F32), Arg(1, F32)), F32)
        reads = [IndexMap.of_dims([0, 2]), IndexMap.of_dims([2, 1])]
        x = b.generic([x, w], reads, (rows, n, k), body, reduced=1, combiner="add")
        x = b.generic([x], [IndexMap.identity(2)], (rows, n), Apply("tanh", (Arg(0, F32),), F32))
    return b.build([x])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path / "cache"))


def model_of(graph, **options):
    compiled = compile_graph(graph, CompileOptions(**options))
    return Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights, compiled.sources))


def parameters_of(model):
    return {s.source: s.parameters for s in sources_from_bytes(model._resources.sources())}


def pretend_tuned(graph, driver="cpu"):
    """Results in the cache by which every kernel gets the last of its candidates; these, by source."""
    (slot,) = resolve_targets((driver,), PlacementOptions(fallback="error"))
    target = slot.kernel
    results = tuned_here(slot.backend, target)
    chosen = {}
    for source in sources_from_bytes(compile_graph(graph, CompileOptions(targets=(driver,))).sources):
        others = candidates(source.dispatch(), target)
        if len(others) > 1:
            chosen[source.source] = others[-1]
            results.put(source.source, Tuned(others[-1], 2000, 1000, tuple(range(len(others)))))
    assert chosen, "the network has kernels with parameters"
    return chosen


def x_of(rows=24):
    return np.random.default_rng(0).standard_normal((rows, 40)).astype(np.float32)


def test_a_tuned_artifact_gives_the_same_results_and_records_its_parameters(tmp_path):
    expected = interpret(network(), [x_of()])[0]
    path = tmp_path / "m.mansard"
    model_of(network()).save(path)
    steps = []
    tuned = mansard.tune(path, 0.3, progress=lambda *step: steps.append(step))
    np.testing.assert_allclose(tuned(x_of()), expected, rtol=1e-5, atol=1e-6)
    tuning = tuned.tuning
    assert tuning.kernels and all(1 <= k.tried <= k.candidates for k in tuning.kernels)
    assert all(k.best_us <= k.default_us for k in tuning.kernels)
    assert steps and all(0 <= done <= total for _, done, total in steps)
    tuned.save(path)
    with mansard.load(path) as again:
        np.testing.assert_allclose(again(x_of()), expected, rtol=1e-5, atol=1e-6)
        assert again.plan.info["tuned"] == "cpu"
        won = {k.parameters for k in tuning.kernels} - {None}
        assert won <= set(parameters_of(again).values())


def test_a_later_compilation_uses_what_was_found():
    chosen = pretend_tuned(network())
    later = model_of(network())
    assert {k: v for k, v in parameters_of(later).items() if v is not None} == chosen
    np.testing.assert_allclose(later(x_of()), interpret(network(), [x_of()])[0], rtol=1e-5, atol=1e-6)
    assert set(parameters_of(model_of(network(), cache=False)).values()) == {None}
    elsewhere = model_of(network(), targets=("cpu:x86-64-v2", "cpu"))
    assert elsewhere.plan.devices[0].target != later.plan.devices[0].target
    first = {s.parameters for s in sources_from_bytes(elsewhere._resources.sources()) if s.device == 0}
    assert first <= {None}


def test_a_search_goes_on_from_what_was_found():
    pretend_tuned(network())
    tuned = mansard.tune(model_of(network(), cache=False), 0.5)
    assert all(k.tried == k.candidates for k in tuned.tuning.kernels)
    np.testing.assert_allclose(tuned(x_of()), interpret(network(), [x_of()])[0], rtol=1e-5, atol=1e-6)


def test_without_the_cache_nothing_is_kept(tmp_path):
    tuned = mansard.tune(model_of(network(), cache=False), 0.3, cache=False)
    assert tuned.tuning.kernels
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_kernels_of_dims_that_vary_are_tuned():
    n = symbol(Dim("n", 1, 512))
    tuned = mansard.tune(model_of(network(n)), 0.5)
    for rows in (1, 17, 130):
        got = tuned(x_of(rows))
        np.testing.assert_allclose(got, interpret(network(n), [x_of(rows)])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "fraction",
    # Candidates between the first and the last are in searches for better ones, above.
    [0.0, *(pytest.param(fraction, marks=pytest.mark.slow) for fraction in (0.3, 0.6)), 1.0],
)
def test_a_model_with_other_parameters_computes_the_same(tmp_path, fraction):
    # Other parameters may want weights in other layouts: the artifact's are packed anew.
    cpu = backend("cpu")
    compiler = KernelCompiler(cpu, cpu.parse_target("cpu"))
    base = model_of(network(), cache=False)
    sources = sources_from_bytes(base._resources.sources())
    chosen = {}
    for source in sources:
        others = candidates(source.dispatch(), compiler.target)
        chosen[0, source.name] = others[round(fraction * (len(others) - 1))]
    path = tmp_path / "m.mansard"
    Model(*with_parameters(base.plan, base._resources, sources, chosen, {0: compiler})).save(path)
    with mansard.load(path) as changed:
        assert set(parameters_of(changed).values()) == set(chosen.values())
        expected = interpret(network(), [x_of()])[0]
        np.testing.assert_allclose(changed(x_of()), expected, rtol=1e-5, atol=1e-6)


def test_default_parameters_are_the_first_candidate():
    target = backend("cpu").parse_target("cpu")
    for source in sources_from_bytes(compile_graph(network()).sources):
        first = candidates(source.dispatch(), target)[0]
        default, explicit = (schedule(source.dispatch(), target, "k", p) for p in (None, first))
        assert str(default.kernel) == str(explicit.kernel)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("width", [4, 5])
def test_packed_constants_unpack(group, width):
    dense = np.arange(7 * 9, dtype=np.float32).reshape(7, 9) + 1
    panels = Panels((9, 1), ((7, 9),), width, group)
    np.testing.assert_array_equal(unpack(panels, panels.pack(dense), dense.size), dense.reshape(-1))


def test_models_that_cannot_be_tuned_say_why(tmp_path):
    compiled = compile_graph(network())
    bare = Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights))
    with pytest.raises(ArtifactError, match="compile it again"):
        mansard.tune(bare, 0.1)
    spoiled = Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights, b"no sources"))
    with pytest.raises(ArtifactError, match="cannot be read"):
        mansard.tune(spoiled, 0.1)
    with pytest.raises(CompileError, match="compile it for this machine"):
        mansard.tune(model_of(network(), targets=("cpu:cortex-a76",)), 0.1)


def test_parameters_are_sorted_hashable_and_named():
    a, b = Parameters.of(rows=3, columns=2), Parameters.from_mapping({"columns": 2, "rows": 3})
    assert a == b and hash(a) == hash(b) and str(a) == "columns=2 rows=3" and a["rows"] == 3
    assert Parameters.from_mapping(json.loads(json.dumps(a.to_dict()))) == a
    assert not Parameters()
    with pytest.raises(mansard.CodegenError, match="have no 'depth'"):
        a["depth"]


def test_the_command_writes_the_artifact_and_tells_what_it_found(tmp_path, capsys):
    from typer.testing import CliRunner

    from mansard.cli.main import app

    path, other = tmp_path / "m.mansard", tmp_path / "tuned.mansard"
    model_of(network()).save(path)
    runner = CliRunner()
    result = runner.invoke(app, ["tune", str(path), "--budget", "0.5s", "-o", str(other), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["artifact"] == str(other) and report["kernels"][0]["default_us"] > 0
    plan, resources = read_artifact(other)
    assert plan.info["tuned"] == "cpu"
    assert {s.name for s in sources_from_bytes(resources.sources())} == {
        row[0] for d in plan.devices for e in d.executables for row in e.kernels
    }
    shown = runner.invoke(app, ["tune", str(path), "--budget", "0.2s"])
    assert shown.exit_code == 0 and "kernels changed" in shown.stdout
    wrong = runner.invoke(app, ["tune", str(path), "--budget", "soon"])
    assert wrong.exit_code != 0 and "not a duration" in wrong.output


def test_kernels_of_a_gpu_are_tuned_and_used_by_later_compilations(tmp_path):
    if not any(d.supported for d in mansard.devices() if d.driver == "vulkan"):
        pytest.skip("no Vulkan device")
    expected = interpret(network(64), [x_of(64)])[0]
    path = tmp_path / "m.mansard"
    model_of(network(64), targets=("vulkan",)).save(path)
    tuned = mansard.tune(path, 0.5)
    kernels = tuned.tuning.kernels
    assert kernels and all(k.candidates > 1 and k.device == "vulkan" for k in kernels)
    np.testing.assert_allclose(tuned(x_of(64)), expected, rtol=1e-5, atol=1e-5)
    tuned.save(path)
    with mansard.load(path) as again:
        assert "vulkan" in again.plan.info["tuned"]
        np.testing.assert_allclose(again(x_of(64)), expected, rtol=1e-5, atol=1e-5)
    chosen = pretend_tuned(network(64), "vulkan")
    later = model_of(network(64), targets=("vulkan",))
    assert {k: v for k, v in parameters_of(later).items() if v is not None} == chosen
    np.testing.assert_allclose(later(x_of(64)), expected, rtol=1e-5, atol=1e-5)


def test_results_of_a_gpu_belong_to_its_own_target():
    vulkan = backend("vulkan")
    present = [d for d in mansard.devices() if d.driver == "vulkan" and d.supported]
    if not present:
        pytest.skip("no Vulkan device")
    target = vulkan.parse_target(vulkan.describe_device(present[0]))
    assert device_here(vulkan, target) == present[0]
    assert device_here(vulkan, vulkan.parse_target("vulkan:mali-g715")) is None
    h200 = dataclasses.replace(present[0], name="NVIDIA H200")
    assert h200.is_product(vulkan.product_names("vulkan:h200")[0])
