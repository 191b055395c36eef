"""Experts of GGUF files stay the integers that the file has, and give what the unpacked weights give."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import transformers
from gguf.constants import GGMLQuantizationType as Type
from support.decoders.checkpoints import write_decoder
from support.decoders.gguf_models import write_model
from support.vulkan_support import usable_device

import mansard
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.frontends.decoders.architecture import Experts
from mansard.frontends.decoders.checkpoint import open_checkpoint
from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
from mansard.frontends.decoders.families import describe
from mansard.frontends.decoders.layers import expert_groups
from mansard.frontends.decoders.layers.expert_groups import PARTS
from mansard.ir.interpreter.graph import interpret
from mansard.ir.quantised_weight import CODES
from mansard.language import load_lm

PROMPT = [3, 40, 41, 7, 16, 12, 55, 9, 30, 30, 2]
DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]
CONFIGS = {
    "qwen3_moe": transformers.Qwen3MoeConfig(
        hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_experts=6, num_experts_per_tok=2,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=64,
        max_position_embeddings=64,
    ),
    "granitemoe": transformers.GraniteMoeConfig(
        hidden_size=64, intermediate_size=64, num_local_experts=5, num_experts_per_tok=3, vocab_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    ),
}  # fmt: skip
LIMITS = {"qwen3_moe": "60 kB", "granitemoe": "115 kB"}
"""Of a device, for some of the experts beside all else."""


@pytest.fixture(scope="module", params=[("qwen3_moe", Type.Q4_0), ("granitemoe", Type.Q8_0)], ids=str)
def path(request, tmp_path_factory):
    name, kind = request.param
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name])
    for tensor in model.state_dict().values():
        tensor.copy_(torch.empty_like(tensor).normal_(0, 0.2).bfloat16())  # what is no matrix stays exact
    place = tmp_path_factory.mktemp("experts") / "model.gguf"
    write_model(model, place, kind)
    return place


def graph_of(path, *, apart=(), **options):
    checkpoint = open_checkpoint(path, DType.F32)
    architecture = describe(checkpoint.config)
    blocks = [
        dataclasses.replace(b, network=dataclasses.replace(b.network, apart=apart))
        if isinstance(b.network, Experts)
        else b
        for b in architecture.blocks
    ]
    changed = dataclasses.replace(architecture, blocks=tuple(blocks))
    options = {"context": 32, "dtype": DType.F32, "all_logits": True, **options}
    return build_decoder(checkpoint, changed, DecoderOptions(**options))


def logits(graph, ids):
    return interpret(graph, {"tokens": np.array([ids]), "positions": np.array([0])})[0][0]


@pytest.mark.parametrize("apart", [(), (0, 3)])
@pytest.mark.parametrize("length", [1, 11])
def test_graphs_compute_with_the_integers_of_the_file(path, apart, length):
    graph = graph_of(path, apart=apart, length=length)
    stacks = [v for v in graph.constants if ".experts." in v.name and v.type.rank == 3]
    assert {v.type.dtype for v in stacks} & CODES and DType.F32 not in {v.type.dtype for v in stacks}
    expected = logits(graph_of(path, length=length, unpack=True), PROMPT[:length])
    np.testing.assert_allclose(logits(graph, PROMPT[:length]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("apart", [(), (0, 3)])
def test_groups_without_rows_that_are_skipped_change_nothing(path, apart):
    """Whether kernels skip groups is a matter of their time; so is what a product multiplies them with."""
    plain = graph_of(path, apart=apart, length=11)
    skipping = graph_of(path, apart=apart, length=11, skip_empty_groups=frozenset(PARTS))
    assert str(plain) != str(skipping)
    expected = logits(plain, PROMPT[:11])
    np.testing.assert_allclose(logits(skipping, PROMPT[:11]), expected, rtol=1e-5, atol=1e-6)


def test_groups_are_small_where_empty_ones_are_skipped(path, monkeypatch):
    """And where caches hold an expert's matrices; otherwise of as many rows as an expert has usually."""

    def groups(**options):
        graph = graph_of(path, length=256, context=256, **options)
        return next(v for v in graph.values() if v.name.startswith("group_experts")).type.shape[0]

    skip = frozenset(PARTS)
    usual, small = groups(), groups(skip_empty_groups=skip)
    assert small > 1.5 * usual
    monkeypatch.setattr(expert_groups, "CACHED", 16)
    assert groups(skip_empty_groups=skip) == usual


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_and_logits_are_those_of_the_unpacked_weights(path, device):
    if device == "vulkan":
        usable_device()
    reference = graph_of(path, length=Dim("length", 1, 32), unpack=True)
    with load_lm(path, devices=device, context=32, chunk=16, dtype="f32", cache_dtype="f32") as lm:
        expected = logits(reference, PROMPT)
        assert np.abs(lm.logits(PROMPT) - expected).max() / np.abs(expected).max() < 1e-5
        ids = list(PROMPT)
        for _ in range(6):
            ids.append(int(logits(reference, ids)[-1].argmax()))
        assert [t.id for t in lm.generate(PROMPT, 6, stop_at_end=False)] == ids[len(PROMPT) :]
        assert not any("unpacked" in text for text in lm.description.stored_types.values())


def test_activations_are_rounded_on_request(path):
    how = mansard.quantize("stored", activations="int8")
    options = {"devices": "cpu", "context": 32, "chunk": 16, "dtype": "f32", "cache_dtype": "f32"}
    with load_lm(path, **options) as plain, load_lm(path, **options, quantize=how) as lm:
        expected, result = plain.logits(PROMPT), lm.logits(PROMPT)
        assert 0 < np.abs(result - expected).max() / np.abs(expected).max() < 0.1
        assert lm.description.stored_types == plain.description.stored_types
        ids = list(PROMPT)
        for _ in range(4):
            ids.append(int(lm.logits(ids)[-1].argmax()))
        assert [t.id for t in lm.generate(PROMPT, 4, stop_at_end=False)] == ids[len(PROMPT) :]


def test_stored_is_for_checkpoints_of_small_integers(tmp_path):
    write_decoder(tmp_path, "llama")
    how = mansard.quantize("stored", activations="int8")
    with pytest.raises(mansard.CompileError, match=r"weights of small integers, which .* has not"):
        load_lm(tmp_path, devices="cpu", quantize=how)


@pytest.mark.vulkan
def test_experts_on_two_devices(path):
    usable_device()
    options = {"context": 32, "chunk": 16, "dtype": "f32", "cache_dtype": "f32"}
    with load_lm(path, devices="cpu", **options) as alone:
        expected, tokens = alone.logits(PROMPT), [t.id for t in alone.generate(PROMPT, 6, stop_at_end=False)]
    limit = LIMITS[open_checkpoint(path).config["model_type"]]
    both = {"devices": ["vulkan", "cpu"], "expert_device": "vulkan", "memory": {"vulkan": limit}}
    with load_lm(path, **both, **options) as lm:
        assert 0 < len(lm.explain().experts.experts[0]) < 5
        assert np.abs(lm.logits(PROMPT) - expected).max() / np.abs(expected).max() < 1e-5
        assert [t.id for t in lm.generate(PROMPT, 6, stop_at_end=False)] == tokens
