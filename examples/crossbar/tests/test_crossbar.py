"""Products in tiles: precision, placement until the tiles are full, energy."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from mansard_crossbar.device import DRIVER, Usage
from mansard_crossbar.model import model
from mansard_crossbar.program import FORMAT
from mansard_crossbar.tiles import multiply, write_cells

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dims import Dim, symbol
from mansard.errors import OutOfMemoryError
from mansard.hal import EntryPoint, ExecutableSpec, registry
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.types import Linear
from mansard.placement import PlacementOptions
from mansard.testing.graphs import A0, A1, F32, matmul, op, unary

RNG = np.random.default_rng(5)
CHIP = model()
ON_TILES = PlacementOptions(pins=(("contraction*", "crossbar"),), fallback="cpu")


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def stored(b, *shape):
    return b.constant("w", Constant.of(numbers(*shape), f"w{len(b._constants)}"), shape, F32)


def layers(*widths):
    b = GraphBuilder()
    x = b.input("x", (symbol(Dim("n", 1, 64)), widths[0]), F32)
    for before, after in itertools.pairwise(widths):
        x = unary(b, "tanh", matmul(b, x, stored(b, before, after)))
    return b.build([x])


def convolution():
    b = GraphBuilder()
    x, w = b.input("x", (2, 6, 9, 9), F32), stored(b, 20, 6, 3, 3)
    window = IndexMap(
        (Linear.dim(0), Linear.dim(4), Linear(((2, 1), (5, 1)), -1), Linear(((3, 1), (6, 1)), -1)), 0.0
    )
    reads = [window, IndexMap.of_dims((1, 4, 5, 6))]
    return b.build(
        [b.generic([x, w], reads, (2, 20, 9, 9, 6, 3, 3), op("mul", A0, A1), reduced=3, combiner="add")]
    )


def run(graph, inputs, options=ON_TILES):
    """Results, decisions, tiles in use, and what the device did for one call."""
    device = registry.open_device("crossbar")
    built = compile_graph(graph, CompileOptions(("cpu", "crossbar"), options, cache=False))
    before = device.usage()
    with Model(built.plan, MemoryResources(built.executables, built.weights)) as running:
        result = np.asarray(running(*inputs))
        after = device.usage()
    assert device.usage().tiles == before.tiles == 0
    done = {f: getattr(after, f) - getattr(before, f) for f in ("tiles", "written", "vectors", "joules")}
    return result, built.plan.decisions, Usage(**done)


def refusals(decisions):
    return [str(d.costs.get("crossbar")) for d in decisions]


def distance(given, wanted):
    return float(np.linalg.norm(given - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("graph", [layers(200, 300), convolution()], ids=["linear", "convolution"])
def test_products_run_in_tiles_with_the_precision_of_converters(graph):
    inputs = [numbers(*(5 if not isinstance(d, int) else d for d in v.type.shape)) for v in graph.inputs]
    result, decisions, usage = run(graph, inputs)
    (wanted,) = interpret(graph, inputs)
    assert 1e-4 < distance(result, wanted) < 0.06
    assert [d.device for d in decisions if d.device == "crossbar"]
    assert usage.tiles == usage.written > 0 and usage.vectors == (5 if wanted.ndim == 2 else 2 * 81)


def test_wider_converters_are_closer():
    weight, vectors = numbers(300, 40), numbers(7, 300)
    errors = []
    for bits in (6, 8, 12):
        chip = dataclasses.replace(CHIP, output_bits=bits)
        errors.append(distance(multiply(vectors, write_cells(weight, chip), chip), vectors @ weight))
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.02


def test_energy_counts_conversions_cells_and_writing():
    graph = layers(200, 300)
    _, _, usage = run(graph, [numbers(5, 200)])
    assert usage.tiles == 2 * 3
    vector = 200 * 3 * 2e-13 + 300 * 2 * 2e-12 + 200 * 300 * 1e-15
    assert usage.joules == pytest.approx(5 * vector + 6 * 1e-6)


def test_products_go_to_tiles_until_these_are_full():
    graph = layers(512, 768, 512, 1280)  # 24, 24 and 40 of 64 tiles
    _, decisions, usage = run(graph, [numbers(64, 512)], PlacementOptions())
    assert usage.tiles == 48 and usage.vectors == 128
    taken = [d.reason for d in decisions if d.device == "crossbar"]
    assert len(taken) == 2 and all("24 tiles, 64 vectors, 0.458 µJ" in text for text in taken)
    assert any("takes 40 tiles, and 16 of 64 are free" in reason for reason in refusals(decisions))


def test_a_device_whose_tiles_are_full_loads_no_more():
    graph = layers(128 * 8, 128 * 5)  # 40 of 64 tiles
    built = compile_graph(graph, CompileOptions(("cpu", "crossbar"), ON_TILES, cache=False))
    (spec,) = [s for s in _programs(built) if s]
    device = DRIVER.open(DRIVER.devices()[0])
    try:
        first = device.load(spec)
        with pytest.raises(OutOfMemoryError, match="takes 40 tiles, and 24 of 64 are free"):
            device.load(spec)
        first.close()
        first.close()
        device.load(spec)
        assert device.usage().written == 80
    finally:
        device.close()


def _programs(built):
    codes = [bytes(code) for code in built.executables.values() if bytes(code)[:4] == b"XBAR"]
    return [ExecutableSpec(FORMAT, "crossbar", code, (EntryPoint("main", 2, 1),)) for code in codes]


def test_what_the_tiles_do_not_take_has_a_reason():
    b = GraphBuilder()
    x, y = b.input("x", (3, 4), F32), b.input("y", (4, 5), F32)
    inputs = [numbers(3, 4), numbers(4, 5)]
    _, decisions, usage = run(b.build([matmul(b, x, y)]), inputs, PlacementOptions())
    assert usage.vectors == 0
    assert any("not exactly one factor is one" in reason for reason in refusals(decisions))
