"""Log-probabilities beside the tokens: those of transformers, and the tokens are what they are without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.decoders.checkpoints import reference_logits, write_decoder
from support.vulkan_support import usable_device

from mansard.language import load_lm
from mansard.language.generation import Sampling

PROMPT = [5, 17, 3, 88, 41]


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def test_scores_are_those_of_the_model(device, tmp_path):
    if device == "vulkan":
        usable_device()
    module = write_decoder(tmp_path, "llama", num_hidden_layers=1)
    with load_lm(tmp_path, devices=device, context=64, chunk=8, sequences=3, logprobs=True) as lm:
        prefill, decode = (lm.model.method(f"{role}_scored") for role in ("prefill", "decode"))
        settings, draws = Sampling(temperature=0.8, top_k=5, repetition_penalty=1.5, seed=3).rows(1)
        token, score, ranked, scores = prefill(
            tokens=np.array([PROMPT]), positions=np.array([0]), last=np.array([4]), slot=np.array([1]),
            settings=settings, draws=draws,
        )  # fmt: skip
        check(module, PROMPT, token[0], score[0], ranked[0], scores[0])
        text = [*PROMPT, int(token[0])]
        results = decode(
            positions=np.array([0, 5, 0]), settings=np.repeat(settings, 3, 0), draws=np.repeat(draws, 3, 0)
        )
        check(module, text, *(result[1] for result in results))


def check(module, text, token, score, ranked, scores):
    expected = torch.log_softmax(torch.as_tensor(reference_logits(module, text)[-1]), 0).numpy()
    np.testing.assert_allclose(score, expected[token], atol=1e-3)
    assert ranked.tolist() == np.argsort(-expected)[:20].tolist()
    np.testing.assert_allclose(scores, expected[ranked], atol=1e-3)
