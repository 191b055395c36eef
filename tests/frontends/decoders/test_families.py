"""Each family's Graph against transformers, by the interpreter."""

import numpy as np
import pytest
from support.decoders.checkpoints import VARIATIONS, reference_logits, write_decoder

from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.decoders.checkpoint import open_checkpoint
from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
from mansard.frontends.decoders.families import FAMILIES, describe
from mansard.frontends.decoders.layers.attention import Attention, Sequence
from mansard.frontends.decoders.layers.norm import NormSettings
from mansard.frontends.decoders.layers.writer import Writer
from mansard.frontends.decoders.rotary import rotary_of
from mansard.ir.graph import GraphBuilder
from mansard.ir.interpreter.graph import interpret


def graph_of(folder, **options):
    checkpoint = open_checkpoint(folder)
    return build_decoder(checkpoint, describe(checkpoint.config), DecoderOptions(**options))


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("variation", VARIATIONS)
def test_logits_in_two_pieces_match_transformers(variation, heads_first, tmp_path):
    module = write_decoder(tmp_path, variation)
    ids = np.random.default_rng(0).integers(0, 97, 20)
    expected = reference_logits(module, ids)
    options = {"length": Dim("length", 1, 16), "all_logits": True, "heads_first": heads_first}
    graph, states = graph_of(tmp_path, context=32, **options), {}
    (head,) = interpret(graph, {"tokens": ids[None, :13], "positions": np.array([0])}, states)
    (tail,) = interpret(graph, {"tokens": ids[None, 13:], "positions": np.array([13])}, states)
    ours = np.concatenate([head[0], tail[0]])
    assert np.abs(ours - expected).max() / np.abs(expected).max() < 3e-6


@pytest.mark.parametrize("variation", ["llama", "gemma2", "lfm2"])
@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({}, {}),
        ({"cache_dtype": DType.I8}, {}),
        ({"sequences": 2}, {"slot": np.array([1])}),
        ({"sequences": 2, "pages": 3, "context": 256}, {"slot": np.array([0]), "pages": np.array([[2, 0]])}),
        (
            {"sequences": 2, "cache_dtype": DType.I8, "pages": 2},
            {"slot": np.array([1]), "pages": np.array([[1]])},
        ),
    ],
)
def test_the_order_of_dims_in_caches_changes_no_bit(options, inputs, variation, tmp_path):
    write_decoder(tmp_path, variation)
    ids, results = np.random.default_rng(0).integers(0, 97, 12), []
    options = {"context": 32, "length": Dim("length", 1, 16), "all_logits": True, **options}
    for heads_first in (False, True):
        graph, states = graph_of(tmp_path, **options, heads_first=heads_first), {}
        known = {value.name for value in graph.inputs}
        given = {name: value for name, value in inputs.items() if name in known}
        for start, end in ((0, 7), (7, 8), (8, 12)):
            call = {"tokens": ids[None, start:end], "positions": np.array([start]), **given}
            results.append(interpret(graph, call, states)[0])
        caches = [s.before.type.shape for s in graph.states if s.before.name.endswith("keys")]
        assert all(len(shape) == (4 if heads_first else 3) for shape in caches)
    for before, after in zip(results[:3], results[3:], strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("variation", ["lfm2-biased", "lfm2_moe", "qwen3_moe-mixed"])
def test_padding_behind_the_last_token_leaves_no_trace(variation, tmp_path):
    module = write_decoder(tmp_path, variation)
    ids = np.random.default_rng(0).integers(0, 97, 12)
    expected = reference_logits(module, ids)
    chunk = graph_of(tmp_path, context=32, length=Dim("length", 1, 16))
    one, states = graph_of(tmp_path, context=32, length=1, all_logits=True), {}
    for start, end in ((0, 2), (2, 9)):
        tokens = np.concatenate([ids[start:end], [5, 6, 7]])[None]
        inputs = {"tokens": tokens, "positions": np.array([start]), "last": np.array([end - start - 1])}
        (logits,) = interpret(chunk, inputs, states)
        assert np.abs(logits[0] - expected[end - 1]).max() / np.abs(expected).max() < 3e-6
    for at in range(9, 12):
        (logits,) = interpret(one, {"tokens": ids[None, at : at + 1], "positions": np.array([at])}, states)
        assert np.abs(logits[0, 0] - expected[at]).max() / np.abs(expected).max() < 3e-6


def test_slots_of_a_convolution_are_sequences_of_their_own(tmp_path):
    module = write_decoder(tmp_path, "lfm2")
    texts = np.random.default_rng(1).integers(0, 97, (2, 9))
    graph, states = graph_of(tmp_path, context=16, length=Dim("length", 1, 8), sequences=2), {}
    for start, end in ((0, 5), (5, 9)):
        for slot, ids in enumerate(texts):
            inputs = {
                "tokens": ids[None, start:end],
                "positions": np.array([start]),
                "slot": np.array([slot]),
                "last": np.array([end - start - 1]),
            }
            (logits,) = interpret(graph, inputs, states)
            expected = reference_logits(module, ids[:end])[-1]
            assert np.abs(logits[0] - expected).max() / np.abs(expected).max() < 3e-6


def test_a_part_of_each_head_is_rotated(tmp_path):
    write_decoder(tmp_path, "llama")
    checkpoint = open_checkpoint(tmp_path)
    config = {**checkpoint.config, "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}}
    mixer = describe(config).blocks[0].mixer
    assert (mixer.head_dim, mixer.rotary.dim) == (8, 4)
    builder = GraphBuilder("rotation")
    x = builder.input("x", (1, 3, 2, 8), DType.F32)
    positions = builder.input("positions", (1,), DType.I64)
    sequence = Sequence(1, 3, 16, positions, 1)
    writer = Writer(builder, checkpoint, DType.F32)
    attention = Attention(writer, sequence, DType.F32, NormSettings(1e-6, 0.0, False))
    graph = builder.build([attention.rotated(x, mixer.rotary)])
    values = np.random.default_rng(0).standard_normal((1, 3, 2, 8), np.float32)
    (got,) = interpret(graph, {"x": values, "positions": np.array([5])})
    angles = np.arange(5, 8)[:, None] * 100.0 ** (-np.array([0, 2]) / 4)
    cos, sin = np.cos(angles)[None, :, None], np.sin(angles)[None, :, None]
    first, second = values[..., :2], values[..., 2:4]
    parts = [first * cos - second * sin, second * cos + first * sin, values[..., 4:]]
    np.testing.assert_allclose(got, np.concatenate(parts, -1), atol=1e-6)


def test_an_encoder_is_refused():
    config = {"model_type": "gemma3_text", "use_bidirectional_attention": True, "head_dim": 8}
    with pytest.raises(ImportModelError, match="use_bidirectional_attention is an encoder"):
        describe(config)


def test_every_family_has_a_variation():
    families = {variation.partition("-")[0] for variation in VARIATIONS}
    assert families == set(FAMILIES)


def test_an_unknown_family_is_named_with_those_known():
    with pytest.raises(ImportModelError, match=r"type 'mamba' are not known; known: .*llama.*qwen3"):
        describe({"model_type": "mamba"})


def test_a_missing_key_is_named():
    with pytest.raises(ImportModelError, match="configuration of a llama model lacks 'num_attention_heads'"):
        describe({"model_type": "llama"})


def test_an_unknown_scaling_of_rotations_is_named():
    with pytest.raises(ImportModelError, match="rotary scaling 'longrope' is not supported"):
        rotary_of({"rope_scaling": {"type": "longrope"}}, 16)


def test_a_weight_of_another_shape_is_named(tmp_path):
    write_decoder(tmp_path, "qwen3")
    checkpoint = open_checkpoint(tmp_path)
    config = {**checkpoint.config, "intermediate_size": 64}
    with pytest.raises(ImportModelError, match=r"gate_proj.weight.*has shape \(48, 32\).*says \(64, 32\)"):
        build_decoder(checkpoint, describe(config), DecoderOptions(context=8))
