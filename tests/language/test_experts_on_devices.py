"""Experts divided between devices: tokens are those of one device, and the most chosen are on the GPU."""

import numpy as np
import pytest
from support.decoders.checkpoints import write_decoder
from support.vulkan_support import usable_device

import mansard
from mansard.language import load_lm

pytestmark = pytest.mark.vulkan
PROMPT = np.random.default_rng(3).integers(0, 97, 13).tolist()
LIMIT = {"vulkan": "200 kB"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    usable_device()
    path = tmp_path_factory.mktemp("lfm2_moe")
    write_decoder(path, "lfm2_moe")
    return path


def opened(folder, **options):
    return load_lm(folder, context=64, chunk=8, **options)


def generated(lm, count=24):
    return [token.id for token in lm.generate(PROMPT, count)]


@pytest.fixture(scope="module")
def alone(folder):
    with opened(folder, devices="cpu") as lm:
        tokens, counts = generated(lm), lm.expert_counts(PROMPT)
        assert len(set(tokens)) > 5
        with pytest.raises(mansard.InputError, match="experts of this model are not divided"):
            lm.expert_hits(PROMPT)
        return tokens, counts, lm.logits(PROMPT)


def test_counts_are_those_of_all_tokens_and_choices(alone):
    assert alone[1].shape == (2, 8)  # of three layers the first has no experts
    assert alone[1].sum(axis=1).tolist() == [3 * len(PROMPT)] * 2


def test_experts_on_two_devices_give_the_tokens_of_one(folder, alone, tmp_path):
    np.save(tmp_path / "counts.npy", alone[1])
    options = {"devices": ["vulkan", "cpu"], "memory": LIMIT, "expert_device": "vulkan"}
    with opened(folder, **options, expert_counts=tmp_path / "counts.npy") as lm:
        assert generated(lm) == alone[0]
        assert np.abs(lm.logits(PROMPT) - alone[2]).max() < 1e-4
        placed = lm.explain().experts
        assert placed.device == "vulkan" and len(placed.experts) == 2
        for counts, numbers in zip(alone[1], placed.experts, strict=True):
            assert 0 < len(numbers) < 8
            assert min(counts[list(numbers)]) >= max(np.delete(counts, list(numbers)))
        assert placed.hits == lm.expert_hits(PROMPT) == placed.share(alone[1])
        assert f"experts on vulkan: {len(placed.experts[0])} of each layer, " in str(lm.explain())
        for method in ("prefill", "decode"):
            rows = lm.model.method(method).explain().rows
            for part, device in (("apart", "vulkan"), ("others", "cpu")):
                products = [
                    r for r in rows if r.location.endswith(f".experts.{part}") and "contraction" in r.ops
                ]
                assert len(products) >= 4 and {row.device for row in products} == {device}


def weight_bytes(lm):
    weights = lm.model.plan.weights
    return sum(int(np.prod(weight.shape)) * weight.dtype.bits // 8 for weight in weights)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_divided_experts_are_stored_as_integers(kind, tmp_path):
    write_decoder(tmp_path, "qwen3_moe", hidden_size=128, moe_intermediate_size=128, num_hidden_layers=1)
    with opened(tmp_path, devices="cpu") as lm:
        whole = weight_bytes(lm)
    with opened(tmp_path, devices="cpu", quantize=kind) as lm:
        expected, tokens = lm.logits(PROMPT), generated(lm)
    memory = {"vulkan": "1 MB" if kind == "int8" else "600 kB"}
    both = {"devices": ["vulkan", "cpu"], "memory": memory, "expert_device": "vulkan"}
    with opened(tmp_path, **both, quantize=kind) as lm:
        assert 0 < len(lm.explain().experts.experts[0]) < 8
        assert np.abs(lm.logits(PROMPT) - expected).max() / np.abs(expected).max() < 1e-4
        assert generated(lm) == tokens
        assert weight_bytes(lm) < whole / 2


def test_what_cannot_be_divided_is_one_error(folder, tmp_path):
    both = {"devices": ["vulkan", "cpu"], "expert_device": "vulkan"}
    for options, message in (
        ({**both, "memory": {"vulkan": "40 kB"}}, "no room for one expert of each layer"),
        (both, "expert_device='vulkan' needs a limit"),
        ({**both, "expert_device": "npu", "memory": LIMIT}, "the devices are vulkan, cpu"),
        ({**both, "memory": LIMIT, "expert_counts": [[1, 2]]}, r"they must be integers \(2, 8\)"),
        ({**both, "memory": LIMIT, "expert_counts": tmp_path / "none.npy"}, "cannot be read"),
    ):
        with pytest.raises((mansard.InputError, mansard.CompileError), match=message):
            opened(folder, **options)
