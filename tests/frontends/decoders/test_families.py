"""Each family's Graph against transformers, by the interpreter."""

import numpy as np
import pytest
from support.decoders.checkpoints import VARIATIONS, reference_logits, write_decoder

from mansard.dims import Dim
from mansard.errors import ImportModelError
from mansard.frontends.decoders.checkpoint import open_checkpoint
from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
from mansard.frontends.decoders.families import FAMILIES, describe
from mansard.frontends.decoders.rotary import rotary_of
from mansard.ir.interpreter.graph import interpret


def graph_of(folder, **options):
    checkpoint = open_checkpoint(folder)
    return build_decoder(checkpoint, describe(checkpoint.config), DecoderOptions(**options))


@pytest.mark.parametrize("variation", VARIATIONS)
def test_logits_in_two_pieces_match_transformers(variation, tmp_path):
    module = write_decoder(tmp_path, variation)
    ids = np.random.default_rng(0).integers(0, 97, 20)
    expected = reference_logits(module, ids)
    graph, states = graph_of(tmp_path, context=32, length=Dim("length", 1, 16), all_logits=True), {}
    (head,) = interpret(graph, {"tokens": ids[None, :13], "positions": np.array([0])}, states)
    (tail,) = interpret(graph, {"tokens": ids[None, 13:], "positions": np.array([13])}, states)
    ours = np.concatenate([head[0], tail[0]])
    assert np.abs(ours - expected).max() / np.abs(expected).max() < 3e-6


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
    with pytest.raises(ImportModelError, match="rotary scaling 'yarn' is not supported"):
        rotary_of({"rope_scaling": {"type": "yarn"}}, 16)


def test_a_weight_of_another_shape_is_named(tmp_path):
    write_decoder(tmp_path, "qwen3")
    checkpoint = open_checkpoint(tmp_path)
    config = {**checkpoint.config, "intermediate_size": 64}
    with pytest.raises(ImportModelError, match=r"gate_proj.weight.*has shape \(48, 32\).*says \(64, 32\)"):
        build_decoder(checkpoint, describe(config), DecoderOptions(context=8))
