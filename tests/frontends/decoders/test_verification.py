"""Windows of proposals against the same tokens read one by one."""

import numpy as np
import pytest
from support.decoders.checkpoints import write_decoder

from mansard.frontends.decoders.checkpoint import open_checkpoint
from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
from mansard.frontends.decoders.families import describe
from mansard.ir.interpreter.graph import interpret

PROMPT = [11, 5, 60, 2, 88, 31]
SETTINGS = {
    "greedy": ([0, 1, 0, 1], [0, 0, 1]),
    "drawn": ([1.2, 0.95, 0.01, 1], [40, 7, 1]),
    "penalised": ([0.8, 1, 0, 1.9], [0, 3, 1]),
}


class Decoder:
    """The roles of a small decoder in the reference interpreter, over the same states."""

    def __init__(self, folder, variation, settings):
        write_decoder(folder, variation)
        self.checkpoint = open_checkpoint(folder)
        self.architecture = describe(self.checkpoint.config)
        numbers, draws = SETTINGS[settings]
        self.settings = {"settings": np.array([numbers], np.float32), "draws": np.array([draws])}
        self.states = {}

    def __call__(self, role, ids, position, **inputs):
        options = DecoderOptions(48, len(ids), sequences=2, role=role)
        given = {"tokens": np.array([ids]), "positions": np.array([position]), "slot": np.array([1])}
        return interpret(
            build_decoder(self.checkpoint, self.architecture, options),
            {**given, **self.settings, **inputs},
            self.states,
        )

    def prefill(self, ids, position):
        return int(self("prefill", ids, position, last=np.array([len(ids) - 1]))[0][0])

    def text(self, count):
        """The prompt, and so many tokens after it, each computed alone."""
        ids = [*PROMPT, self.prefill(PROMPT, 0)]
        while len(ids) < len(PROMPT) + count:
            ids.append(self.prefill(ids[-1:], len(ids) - 1))
        return ids


@pytest.mark.parametrize(
    ("variation", "settings"),
    [
        ("llama", "greedy"),
        ("llama", "penalised"),
        ("mistral", "drawn"),
        ("lfm2", "drawn"),
        ("lfm2", "greedy"),
    ],
)
def test_windows_choose_what_single_tokens_do(tmp_path, variation, settings):
    decoder = Decoder(tmp_path, variation, settings)
    text = decoder.text(8)
    decoder.states = {}
    ids = [*PROMPT, decoder.prefill(PROMPT, 0)]
    for right in (3, 0, 1):  # 7 tokens
        start = len(ids) - 1
        wrong = [(token + 1) % 97 for token in text[start + 1 + right : start + 4]]
        window = [ids[-1], *text[start + 1 : start + 1 + right], *wrong]
        choices, accepted = decoder("verify", window, start)
        assert accepted.tolist() == [right]
        ids += choices[: right + 1].tolist()
        assert ids == text[: len(ids)]
        assert decoder.states["last_token"][1] == ids[-1]


def test_a_window_may_hold_no_proposals(tmp_path):
    decoder = Decoder(tmp_path, "llama", "penalised")
    text = decoder.text(4)
    decoder.states = {}
    ids = [*PROMPT, decoder.prefill(PROMPT, 0)]
    while len(ids) < len(text):
        choices, accepted = decoder("verify", ids[-1:], len(ids) - 1)
        assert accepted.tolist() == [0]
        ids += choices.tolist()
    assert ids == text
