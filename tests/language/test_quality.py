"""Quality of logits against a reference, and of a quantised language model."""

import numpy as np
import pytest
from support.decoders.checkpoints import write_decoder
from support.vulkan_support import usable_device

import mansard
from mansard.errors import InputError
from mansard.language import load_lm
from mansard.language.quality import compare, perplexity, quality

IDS = np.random.default_rng(3).integers(0, 97, 21).tolist()


def test_numbers_of_equal_and_of_shifted_logits():
    reference = np.random.default_rng(0).standard_normal((5, 11)).astype(np.float32)
    same = quality(reference, reference, [1, 2, 3, 4, 5])
    assert (same.largest_error, same.agreement, same.divergence) == (0, 1, 0)
    assert same.perplexity == same.reference_perplexity
    moved = quality(reference + 1, reference)
    assert moved.mean_error == pytest.approx(1) and moved.divergence == pytest.approx(0, abs=1e-12)
    assert quality(-reference, reference).agreement < 1


def test_perplexity_of_a_uniform_distribution_is_its_size():
    assert perplexity(np.zeros((3, 50), np.float32), [0, 7, 49]) == pytest.approx(50)


def test_wrong_sizes():
    with pytest.raises(InputError, match="differ"):
        quality(np.zeros((2, 3)), np.zeros((3, 3)))
    with pytest.raises(InputError, match="1 tokens follow 2 rows"):
        perplexity(np.zeros((2, 3)), [0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen3")
    write_decoder(path, "qwen3", num_hidden_layers=1)
    return path


@pytest.fixture(scope="module")
def exact(folder):
    with load_lm(folder, devices="cpu", context=64, chunk=8) as lm:
        yield lm


@pytest.mark.parametrize(
    ("device", "activations", "difference"),
    [
        ("cpu", "int8", 1e-3),
        pytest.param("vulkan", None, 1e-3, marks=pytest.mark.vulkan),
        # Decode steps round what they multiply, prompts do not; slow, since kernels that round have tests.
        pytest.param("vulkan", "int8", 3e-2, marks=[pytest.mark.vulkan, pytest.mark.slow]),
    ],
)
def test_a_quantised_language_model(exact, folder, device, activations, difference):
    """Prefill and decode agree, and logits are close to the exact ones."""
    if device == "vulkan":
        usable_device()
    how = mansard.quantize("int8", group_size=16, activations=activations, min_elements=1)
    with load_lm(folder, devices=device, context=64, chunk=8, quantize=how) as lm:
        result = compare(exact, lm, IDS)
        assert 0 < result.mean_error < 0.02 * result.spread and result.agreement >= 0.9
        assert result.perplexity == pytest.approx(result.reference_perplexity, rel=0.01)
        tokens = [token.id for token in lm.generate(IDS[:5], 6)]
        chosen = lm.logits([*IDS[:5], *tokens])[4:-1]
        lead = chosen.max(-1) - chosen[np.arange(6), tokens]
        assert (lead <= difference * np.abs(chosen).max()).all()


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def test_floats_of_12_bits(exact, folder, device):
    """As far from f32 weights as bf16 is; decode steps and prompts read the same numbers."""
    if device == "vulkan":
        usable_device()
    how = mansard.quantize("float12", min_elements=1)
    with load_lm(folder, devices=device, context=64, chunk=16, quantize=how) as lm:
        result = compare(exact, lm, IDS)
        assert 0 < result.mean_error < 0.01 * result.spread and result.agreement >= 0.9
        tokens = [token.id for token in lm.generate(IDS[:5], 6)]
        chosen = lm.logits([*IDS[:5], *tokens])[4:-1]
        lead = chosen.max(-1) - chosen[np.arange(6), tokens]
        assert (lead <= 1e-3 * np.abs(chosen).max()).all()


def test_products_of_packed_weights_write_rows_of_a_cache(exact, folder):
    how = mansard.quantize("int4", group_size=16, min_elements=1)
    with load_lm(folder, devices="cpu", context=64, chunk=8, quantize=how) as lm:
        assert compare(exact, lm, IDS).mean_error < 0.3 * lm.logits(IDS).std()
        assert len(list(lm.generate(IDS[:5], 6))) == 6
