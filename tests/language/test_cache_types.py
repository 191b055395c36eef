"""Caches of keys and values in other types than the activations."""

import numpy as np
import pytest
import torch
from support.decoders.checkpoints import write_decoder
from support.vulkan_support import usable_device

import mansard
from mansard.language import load_lm
from mansard.language.quality import compare

IDS = np.random.default_rng(3).integers(0, 97, 33).tolist()
SIZES = {"context": 64, "chunk": 8}
LIMITS = {"bf16": 0.01, "f16": 0.001, "int8": 0.02}
"""Mean errors of logits, over their spread."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen3")
    write_decoder(path, "qwen3")
    return path


@pytest.fixture(scope="module")
def exact(folder):
    with load_lm(folder, devices="cpu", **SIZES) as lm:
        yield lm


def cache_bytes(lm):
    return sum(row.bytes for row in lm.memory() if row.what == "states")


def greedy(lm, count=12):
    return [token.id for token in lm.generate(IDS[:9], count)]


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        # The dtypes of half the width are on Vulkan in f16.
        pytest.param("cpu", "bf16", marks=pytest.mark.slow),
        ("cpu", "int8"),
        *(
            pytest.param(
                "vulkan", k, marks=[pytest.mark.vulkan, *([pytest.mark.slow] if k == "bf16" else [])]
            )
            for k in LIMITS
        ),
    ],
)
def test_logits_are_close_and_the_cache_is_small(exact, folder, device, kind):
    """Of prefill in pieces, and of decoding, which chooses what prefill of the same text finds likeliest."""
    if device == "vulkan":
        usable_device()
    with load_lm(folder, devices=device, cache_dtype=kind, **SIZES) as lm:
        result = compare(exact, lm, IDS)
        assert 0 < result.mean_error < LIMITS[kind] * result.spread and result.agreement >= 0.95
        tokens = greedy(lm)
        chosen = lm.logits([*IDS[:9], *tokens])[8:-1]
        lead = chosen.max(-1) - chosen[np.arange(12), tokens]
        assert (lead <= 1e-3 * np.abs(chosen).max()).all()
        largest = 0.34 if kind == "int8" else 0.52  # heads are short here: a scale for each 16 elements
        assert cache_bytes(lm) < largest * cache_bytes(exact)
        # Nothing of the cache's capacity is made in a step but what is in the cache.
        capacity = 2 * SIZES["context"] * 16
        assert all(
            v.bytes < 4 * capacity or v.kind != "transient" for v in lm.model.method("decode").plan.values
        )


@pytest.mark.slow
def test_caches_of_several_sequences_are_packed(folder):
    with load_lm(folder, devices="cpu", cache_dtype="int8", **SIZES) as one:
        expected = greedy(one)
    with load_lm(folder, devices="cpu", cache_dtype="int8", sequences=2, **SIZES) as two:
        assert [greedy(two), greedy(two)] == [expected, expected]


@pytest.mark.slow
def test_a_packed_cache_of_activations_in_bf16(tmp_path):
    write_decoder(tmp_path, "llama", dtype=torch.bfloat16, num_hidden_layers=1)
    with (
        load_lm(tmp_path, devices="cpu", **SIZES) as plain,
        load_lm(tmp_path, devices="cpu", cache_dtype="int8", **SIZES) as packed,
    ):
        result = compare(plain, packed, IDS)
    assert 0 < result.mean_error < 0.03 * result.spread


def test_an_unknown_type_is_named_with_those_known(folder):
    with pytest.raises(mansard.InputError, match="cache_dtype='int4' is not f32, f16, bf16 or int8"):
        load_lm(folder, devices="cpu", cache_dtype="int4")
    with pytest.raises(mansard.InputError, match="dtype='int8' is not f32, f16 or bf16"):
        load_lm(folder, devices="cpu", dtype="int8")
