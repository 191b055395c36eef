"""Families on both devices at a time against transformers (`make lm-conformance` has all, on each device)."""

import pytest
from support.decoders.checkpoints import write_decoder
from support.vulkan_support import usable_device

import mansard
from benchmarks.lm_conformance.check import PLACEMENTS, Reference, compare, split_placement
from mansard.language import load_lm


@pytest.mark.vulkan
@pytest.mark.parametrize(
    "variation",
    [
        pytest.param("qwen3_moe", marks=pytest.mark.slow),
        pytest.param("granitemoeshared", marks=pytest.mark.slow),
        "gemma3_text",
    ],
)
def test_layers_in_turn_on_both_devices_generate_what_transformers_does(variation, tmp_path):
    usable_device()
    module = write_decoder(tmp_path, variation, max_position_embeddings=160)
    reference = Reference(module, 97, 64)
    split = split_placement(module.config.num_hidden_layers)
    with load_lm(tmp_path, devices=PLACEMENTS["split"], placement=split, context=160, chunk=32) as lm:
        assert set(lm.explain().totals) == set(PLACEMENTS["split"])
        for length in (1, 17, 64):
            result = compare(lm, reference, length)
            assert result.passes(3e-6), result
            assert length == 1 or result.kinds > 5  # not one token over and over, which would show little


@pytest.mark.vulkan
def test_pins_that_divide_a_cache_are_refused(tmp_path):
    usable_device()
    write_decoder(tmp_path, "llama", num_hidden_layers=1)
    pins = mansard.PlacementOptions(pins=(("attention*", "vulkan"), ("*", "cpu")))
    with pytest.raises(mansard.PlacementError, match="share a state: their pins name several"):
        load_lm(tmp_path, devices=PLACEMENTS["split"], placement=pins, context=32, chunk=8)
