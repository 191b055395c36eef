"""Scales of channels that move into constants: results stay, channels are alike, integers lose less."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from quantisation.networks import Encoder, Images

import mansard
from mansard import CompileError
from mansard.frontends import import_model
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret, load
from mansard.ir.ops import Generic
from mansard.ir.verify import verify
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import quantisable_steps
from mansard.quantisation.smoothing import SCALED, bases, smoothed
from mansard.testing.graphs import F32, layer_norm, matmul

LARGE = 3
"""The channel that is larger than the others."""


@pytest.fixture(scope="module", params=[False, True], ids=["norms behind sums", "norms first"])
def network(request):
    """An encoder with a large channel in the results of norms, for which what reads it has small weights, and
    inputs."""
    torch.manual_seed(0)
    module = Encoder(norm_first=request.param).eval()
    # A norm that reads a sum with the channel should have something left of the others.
    times = 100.0 if request.param else 10.0
    with torch.no_grad():
        for norm in (module.layer.norm1, module.layer.norm2):
            norm.weight[LARGE] = times
            norm.bias.normal_()
        module.layer.linear1.weight[:, LARGE] /= times
        module.layer.self_attn.in_proj_weight[:, LARGE] /= times
    return module, [torch.randn(1, 12, 16) for _ in range(4)]


@pytest.fixture(scope="module")
def imported(network):
    module, calls = network
    return import_model(module, (calls[0],))


@pytest.fixture(scope="module")
def graph(imported):
    return run_passes(imported, quantisable_steps())


def arrays(calls):
    return [[x.numpy()] for x in calls]


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_results_stay(network, graph, strength):
    _, calls = network
    changed, scaled = smoothed(graph, arrays(calls), strength)
    verify(changed)
    assert scaled and any(SCALED in constant.key for constant in changed.constants.values())
    for call in arrays(calls):
        (given,), (wanted,) = interpret(changed, call), interpret(graph, call)
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_channels_are_alike_where_values_alone_count(network, graph):
    _, calls = network
    found = bases(graph)
    changed, scaled = smoothed(graph, arrays(calls), 1.0)
    assert [basis.values for basis in scaled] == [basis.values for basis in found]
    for basis in found:
        watched = replace(changed, outputs=basis.values, output_names=tuple(v.name for v in basis.values))
        rows = [np.abs(v).reshape(-1, 16) for call in arrays(calls) for v in interpret(watched, call)]
        largest = np.max([r.max(axis=0) for r in rows], axis=0)
        np.testing.assert_allclose(largest, largest[0], rtol=1e-3)


def test_sums_share_the_scales_of_their_terms(graph):
    """The residual sum of the second half, what both of its terms are, and what a product reads of it."""
    found = max(bases(graph), key=lambda basis: len(basis.values))
    ops = [graph.producers()[value] for value in found.values]
    assert sum(isinstance(op, Generic) and op.is_contraction for op in ops) >= 1
    assert {value.type.shape[-1] for value in found.values} == {16}


def small_norm():
    """A norm whose result two products read; its constants."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.input("x", (8, 4), F32)
    data = {
        "gamma": rng.uniform(0.5, 20.0, 4),
        "beta": rng.standard_normal(4),
        "first": rng.standard_normal((4, 6)),
        "second": rng.standard_normal((4, 3)) * [[0.1], [1.0], [5.0], [1.0]],
    }
    values = {
        name: b.constant(name, Constant.of(a.astype(np.float32), name), a.shape, F32)
        for name, a in data.items()
    }
    norm = layer_norm(b, x, values["gamma"], values["beta"])
    return b.build([matmul(b, norm, values[name]) for name in ("first", "second")]), data


def test_scales_are_those_of_the_formula():
    plain, data = small_norm()
    graph = run_passes(plain, quantisable_steps())
    call = [np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)]
    producers = graph.producers()
    product = next(op for op in graph.ops if isinstance(op, Generic) and op.is_contraction)
    norm = next(v for v in product.inputs if v in producers)
    watched = replace(graph, outputs=(norm, producers[norm].inputs[0]), output_names=("a", "b"))
    largest = np.max([np.abs(v).reshape(-1, 4).max(axis=0) for v in interpret(watched, call)], axis=0)
    weights = np.maximum(*(np.abs(data[name]).max(axis=1) for name in ("first", "second")))
    expected = largest**0.7 / weights**0.3
    changed, _ = smoothed(graph, [call], 0.7)
    stored = {c.key.split(SCALED)[0]: load(v, c) for v, c in changed.constants.items() if SCALED in c.key}
    assert stored.keys() == data.keys()
    scales = data["gamma"] / stored["gamma"].reshape(4)
    np.testing.assert_allclose(scales / scales[0], expected / expected[0], rtol=1e-4)
    np.testing.assert_allclose(stored["beta"].reshape(4) * scales, data["beta"], rtol=1e-4)
    for name in ("first", "second"):
        np.testing.assert_allclose(stored[name], data[name] * scales[:, None], rtol=1e-4)


def test_large_channels_cost_less(network, imported):
    _, calls = network
    reports = {
        strength: mansard.quantize(imported, calls, smoothing=strength).report for strength in (None, 0.75)
    }
    errors = {s: {layer.name: layer.error for layer in report.layers} for s, report in reports.items()}
    # It reads the result of a norm; names of layers are those of the module.
    assert errors[0.75]["layer.linear1"] < errors[None]["layer.linear1"] / 2
    assert reports[0.75].error < reports[None].error
    sets = reports[0.75].smoothed
    assert sets > 0 and f"smoothing 0.75 of {sets} sets of values" in str(reports[0.75])
    assert (reports[None].smoothing, reports[None].smoothed) == (None, 0)


def test_a_model_with_scales_runs_as_its_graph(network, imported):
    _, calls = network
    quantised = mansard.quantize(imported, calls, smoothing=0.5)
    (wanted,) = interpret(quantised.graph, [calls[0].numpy()])
    with mansard.compile(quantised, devices="cpu") as model:
        np.testing.assert_allclose(np.asarray(model(calls[0])), wanted, rtol=1e-4, atol=1e-4)


def test_networks_without_norms_stay_as_they_are():
    torch.manual_seed(0)
    call = torch.randn(1, 3, 12, 12)
    graph = run_passes(import_model(Images().eval(), (call,)), quantisable_steps())
    assert smoothed(graph, [[call.numpy()]], 0.5) == (graph, ())


@pytest.mark.parametrize("smoothing", [1.5, -0.1, True, "0.5"])
def test_other_strengths_are_refused(network, smoothing):
    module, calls = network
    with pytest.raises(CompileError, match=r"smoothing=.*from 0 to 1"):
        mansard.quantize(module, calls, smoothing=smoothing)
