"""Decoders with experts and convolutions on devices, against transformers."""

import numpy as np
import pytest
import torch
from support.decoders.checkpoints import reference_logits, write_decoder
from support.vulkan_support import usable_device

from mansard.language import load_lm

PROMPT = np.random.default_rng(3).integers(0, 97, 13).tolist()


# The same model with a GPU, and experts on both devices, is in `test_experts_on_devices`.
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("vulkan", marks=[pytest.mark.vulkan, pytest.mark.slow])]
)
def test_convolutions_and_experts_generate_what_transformers_does(device, tmp_path):
    if device == "vulkan":
        usable_device()
    module = write_decoder(tmp_path, "lfm2_moe")
    with load_lm(tmp_path, devices=device, context=64, chunk=8) as lm:
        expected = reference_logits(module, PROMPT)
        assert np.abs(lm.logits(PROMPT) - expected).max() / np.abs(expected).max() < 3e-6
        prompt = torch.tensor([PROMPT])
        greedy = module.generate(prompt, max_new_tokens=48, do_sample=False)[0, len(PROMPT) :].tolist()
        assert len(set(greedy)) > 5
        assert [token.id for token in lm.generate(PROMPT, 48)] == greedy
        # The convolutions' states stand behind the text: what begins alike is computed from its start …
        assert [token.id for token in lm.generate(PROMPT, 8)] == greedy[:8] and lm.stats.reused == 0
        # … and what continues it is not.
        text = [*PROMPT, *greedy[:10]]
        assert [token.id for token in lm.generate(text, 8)] == greedy[10:18] and lm.stats.reused == 20
        # A step may have been submitted behind a token at which the reader stops; then it begins anew.
        stopped = lm.generate(PROMPT, 30)
        assert [next(stopped).id for _ in range(4)] == greedy[:4]
        stopped.close()
        assert [token.id for token in lm.generate([*PROMPT, *greedy[:4]], 8)] == greedy[4:12]
