"""Kernels made once: equal dispatches share one, compiling in parallel and the cache change nothing."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.graphs import A0, F32, maps, matmul, op, random_graphs, softmax, unary

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.codegen import schedules
from mansard.compiler import CompileOptions, compile_graph, kernels
from mansard.compiler.identity import dispatch_from_data, dispatch_key, dispatch_to_data
from mansard.dims import Dim, symbol
from mansard.errors import ArtifactError
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.passes.fusion.fuse import fuse
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps


def layers(count, width=24, names="w"):
    """``count`` equal layers: a product and an activation; softmax at the end."""
    b = GraphBuilder()
    x = b.input("x", (4, width), F32)
    random = np.random.default_rng(1)
    for i in range(count):
        data = random.standard_normal((width, width)).astype(np.float32)
        w = b.constant(f"{names}{i}", Constant.of(data, f"{names}{i}"), (width, width), F32)
        x = unary(b, "tanh", matmul(b, x, w))
    return b.build([softmax(b, x)])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    return tmp_path


def files(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


def names(compiled):
    return [row[0] for d in compiled.plan.devices for e in d.executables for row in e.kernels]


def call(compiled, x):
    with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
        return model(x)


def test_equal_layers_share_kernels_across_depths_and_names():
    one, many = compile_graph(layers(1)), compile_graph(layers(7, names="other"))
    assert set(names(one)) == set(names(many))
    assert (many.cache.hits, many.cache.misses) == (len(names(many)), 0)
    steps = [s for d in many.plan.devices for segment in d.segments for s in segment.steps]
    assert sum(hasattr(s, "entry") for s in steps) == 7 + len(names(many)) - 1


def test_shapes_types_and_ranges_tell_kernels_apart():
    keys = set()
    for shape in [(4, 8), (8, 4), (symbol(Dim("n", 1, 64)), 8), (symbol(Dim("n", 1, 4096)), 8)]:
        b = GraphBuilder()
        x = b.input("x", shape, F32)
        graph = b.build([unary(b, "exp", x)])
        keys |= {dispatch_key(d) for d in fuse(run_passes(graph, canonical_steps())).dispatches}
    assert len(keys) == 4


def test_a_second_compilation_finds_every_kernel(cache):
    first = compile_graph(layers(2))
    assert first.cache.hits == 0 and first.cache.misses == len(names(first)) > 0
    second = compile_graph(layers(2))
    assert second.cache.misses == 0
    assert second.plan == first.plan and second.executables == first.executables
    x = np.random.default_rng(0).standard_normal((4, 24)).astype(np.float32)
    np.testing.assert_allclose(call(second, x), interpret(layers(2), [x])[0], rtol=1e-5, atol=1e-6)


def test_without_the_cache_nothing_is_read_or_written(cache):
    compiled = compile_graph(layers(1), CompileOptions(cache=False))
    assert compiled.cache.hits == 0 and compiled.cache.misses == len(names(compiled))
    assert files(cache) == []


def test_damaged_entries_are_compiled_again(cache):
    first = compile_graph(layers(1))
    for file in files(cache):
        file.write_bytes(file.read_bytes()[:-1])
    again = compile_graph(layers(1))
    assert again.cache.hits == 0 and again.executables == first.executables
    assert compile_graph(layers(1)).cache.misses == 0


def test_entries_of_another_form_are_compiled_again(cache, monkeypatch):
    first = compile_graph(layers(1))
    monkeypatch.setattr(kernels, "_encode", lambda kernel: b'{"format": 1}\n')
    for file in files(cache):
        file.unlink()
    compile_graph(layers(1))
    monkeypatch.undo()
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(cache))
    assert compile_graph(layers(1)).executables == first.executables


def test_other_targets_and_other_compilers_have_other_entries(monkeypatch):
    compile_graph(layers(1))
    other = compile_graph(layers(1), CompileOptions(targets=("cpu:x86-64-v3", "cpu")))
    assert other.cache.misses > 0
    monkeypatch.setattr(kernels, "compiler_digest", lambda: "another compiler")
    assert compile_graph(layers(1)).cache.hits == 0


def test_parallel_compilation_gives_what_serial_gives(monkeypatch):
    def compiled(threads):
        monkeypatch.setattr(kernels, "workers", lambda: threads)
        return compile_graph(graph, CompileOptions(cache=False))

    b = GraphBuilder()
    x = b.input("x", (6, 10), F32)
    outs = [unary(b, name, x) for name in ("exp", "sin", "tanh", "erf", "log1p", "atan")]
    outs += [b.generic([x], [maps(0, 1)], (6, 10), A0, reduced=1, combiner=c) for c in ("add", "max", "mul")]
    graph = b.build(outs)
    serial, parallel = compiled(1), compiled(4)
    assert parallel.plan == serial.plan and parallel.executables == serial.executables


def test_an_error_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(kernels, "workers", lambda: 3)
    monkeypatch.setattr(schedules, "schedule", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compile_graph(layers(2), CompileOptions(cache=False))


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_graphs())
def test_dispatches_survive_their_data_form(graph):
    for dispatch in fuse(run_passes(graph, canonical_steps())).dispatches:
        data = json.loads(json.dumps(dispatch_to_data(dispatch)))
        again = dispatch_from_data(data, "again")
        assert dispatch_key(again) == dispatch_key(dispatch)
        assert [type(o) for o in again.ops] == [type(o) for o in dispatch.ops]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("ops"),
        lambda d: d["ops"][0].update(op="Op"),
        lambda d: d["ops"][0].update(op="os.system"),
        lambda d: d["ops"][0].update(surprise=1),
        lambda d: d["ops"][0].update({"in": [99]}),
        lambda d: d["values"].append(["f32", ["unknown"]]),
        lambda d: d["values"].append(["f33", [1]]),
    ],
)
def test_altered_data_of_a_dispatch_is_refused(change):
    b = GraphBuilder()
    x = b.input("x", (3, 4), F32)
    graph = b.build([b.generic([x], [maps(0, 1)], (3, 4), op("exp", A0))])
    data = dispatch_to_data(fuse(graph).dispatches[0])
    change(data)
    with pytest.raises(ArtifactError):
        dispatch_from_data(data, "x")
