"""Decoder layers with a cache in states: several steps on every device, against the interpreter."""

import dataclasses

import numpy as np
import pytest
from support.decoders.checkpoints import write_decoder
from support.graph_runner import compare, compiled, outputs

from benchmarks.kernels.decoder_layers import Shape, decoder
from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.frontends.decoders.checkpoint import open_checkpoint
from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
from mansard.frontends.decoders.families import describe
from mansard.ir.interpreter.graph import interpret

SMALL = Shape(
    layers=2, hidden=64, heads=4, key_heads=2, depth=16, inner=96, vocabulary=64, capacity=40, dtype=DType.F32
)


def _follow(graph, device, calls, rtol, atol):
    """Calls in turn, with the states that those before them left."""
    states = {}
    with compiled(graph, device) as model:
        for tokens in calls:
            expected = interpret(graph, [tokens], states)
            compare(outputs(model, [tokens]), expected, rtol, atol)


def test_steps(device):
    calls = [np.array([token]) for token in (3, 60, 3, 17)]
    _follow(decoder(SMALL), device, calls, 1e-4, 1e-4)


def test_steps_in_bf16(device):
    shape = dataclasses.replace(SMALL, layers=1, dtype=DType.BF16)
    _follow(decoder(shape), device, [np.array([token]) for token in (3, 60, 3)], 3e-2, 3e-2)


def test_any_number_of_rows_up_to_the_capacity(device):
    graph = decoder(dataclasses.replace(SMALL, layers=1), rows=dims.symbol(Dim("s", 1, 32)))
    _follow(graph, device, [np.arange(n) % 64 for n in (1, 7, 30, 9)], 1e-4, 1e-4)


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("cache", [DType.F32, DType.F16, DType.I8])
@pytest.mark.parametrize("variation", ["llama", "qwen3"])
def test_caches_of_each_order_and_type(variation, cache, heads_first, device, tmp_path):
    """Rows that a copy, a conversion or a norm computes are written where the position and the head say."""
    write_decoder(tmp_path, variation, num_hidden_layers=1)
    checkpoint = open_checkpoint(tmp_path)
    options = DecoderOptions(
        64, Dim("length", 1, 16), all_logits=True, cache_dtype=cache, heads_first=heads_first
    )
    graph, states = build_decoder(checkpoint, describe(checkpoint.config), options), {}
    ids = np.random.default_rng(0).integers(0, 97, 20)
    with compiled(graph, device) as model:
        for start, end in ((0, 9), (9, 10), (10, 20)):
            inputs = [ids[None, start:end], np.array([start])]
            compare(outputs(model, inputs), interpret(graph, inputs, states), 2e-3, 2e-3)
