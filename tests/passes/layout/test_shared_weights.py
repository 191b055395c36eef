"""Weights that methods of a model share: one form, and one place where one method joins them."""

import numpy as np
import pytest
from support.graphs import F32, matmul
from support.vulkan_support import usable_device

from mansard import dims
from mansard.api import Model, load
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_methods
from mansard.dims import Dim
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Arg
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.horizontal_fusion import fuse_horizontally
from mansard.passes.layout.shared_weights import PART_ALIGNMENT, share_joined
from mansard.placement import PlacementOptions

RNG = np.random.default_rng(0)
DEPTH = 64


def graph(rows, columns, *, together, depth=DEPTH):
    """Products of x with weights named q and k; ``together``: nothing hinders them from becoming one."""
    b = GraphBuilder()
    x = b.input("x", (rows, depth), F32)
    outputs = []
    for name, count in zip("qk", columns, strict=True):
        data = np.random.default_rng(count).standard_normal((count, depth)).astype(np.float32)
        y = matmul(b, x, b.constant(name, Constant.of(data, name), (count, depth), F32), transposed=True)
        if together:
            y = b.generic(
                (y,), (IndexMap.of_dims((0, 1)),), (rows, count), Arg(0, F32), reduced=1, combiner="max"
            )
        outputs.append(y)
    return b.build(outputs)


def fused(columns, depth=DEPTH):
    """A method that keeps the products apart, and one that merges them."""
    apart = fuse(graph(4, columns, together=False, depth=depth))
    return [apart, fuse(fuse_horizontally(graph(1, columns, together=True, depth=depth)))]


def test_parts_of_a_joined_weight_are_slices_of_it():
    apart, one = share_joined(fused((48, 16)))
    ((whole, constant),) = ((v, c) for v, c in one.graph.constants.items() if c.parts)
    assert [key for key, _ in constant.parts] == ["q", "k"] and whole.type.shape == (64, DEPTH)
    places = {apart.graph.constants[v].key: at for v, (_, at) in apart.slices.items()}
    assert places == {"q": 0, "k": 48 * DEPTH * 4}
    assert {apart.graph.constants[w].key for w, _ in apart.slices.values()} == {constant.key}


def test_parts_at_odd_bytes_stay_weights_of_their_own():
    graphs = fused((30, 16), depth=36)
    assert any(c.parts for c in graphs[1].graph.constants.values()) and 30 * 36 * 4 % PART_ALIGNMENT
    assert share_joined(graphs) == graphs


@pytest.mark.vulkan
def test_a_gpu_has_one_copy_of_what_one_method_joins(tmp_path):
    usable_device()
    rows = dims.symbol(Dim("rows", 4, 64))
    graphs = {"": graph(rows, (48, 16), together=False), "one": graph(1, (48, 16), together=True)}
    options = CompileOptions(targets=("vulkan",), placement=PlacementOptions(fallback="error"))
    compiled = compile_methods(graphs, options)
    assert len({w.entry for p in compiled.plan.all_plans() for w in p.weights}) == 1
    x = RNG.standard_normal((20, DEPTH)).astype(np.float32)
    with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
        model.save(tmp_path / "model.mansard")
        check(model, graphs, x)
        (row,) = (row for row in model.memory() if row.what == "weights")
        assert row.bytes == 64 * DEPTH * 4
    with load(tmp_path / "model.mansard") as model:
        check(model, graphs, x)


def check(model, graphs, x):
    for run, source, rows in ((model, graphs[""], x), (model.method("one"), graphs["one"], x[:1])):
        for got, expected in zip(run(rows), interpret(source, [rows]), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
