"""One decoder on one placement against transformers: logits of prompts, and greedy tokens behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mansard.language import LanguageModel
    from mansard.placement import PlacementOptions

PLACEMENTS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "vulkan": ("vulkan",),
    "split": ("cpu", "vulkan"),
}
"""Devices of each placement; ``split`` has every second layer on each."""


@dataclass(frozen=True)
class Agreement:
    """What a language model gave for one prompt. ``error`` is the largest error of a logit of any of its
    tokens, over the largest logit; ``equal`` counts the tokens up to the first that differs, of ``steps``;
    ``kinds`` are different tokens among them; ``lead`` is by how much, over the largest logit, transformers'
    token was the likelier one where they differ."""

    length: int
    error: float
    equal: int
    steps: int
    kinds: int
    lead: float | None = None

    def passes(self, tolerance: float) -> bool:
        """Whether logits are within the tolerance and all tokens are equal."""
        return self.error <= tolerance and self.equal == self.steps

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


def split_placement(layers: int) -> PlacementOptions:
    """Every second layer on each device, the GPU first; what is before and behind them on the CPU."""
    from mansard.placement import PlacementOptions

    pins = tuple((f"*layers.{n}.*", ("vulkan", "cpu")[n % 2]) for n in range(layers))
    return PlacementOptions(pins=(*pins, ("*", "cpu")))


@dataclass
class Reference:
    """transformers' module, with what it gave for prompts of each length."""

    module: Any
    vocabulary: int
    steps: int

    def __post_init__(self) -> None:
        self._known: dict[int, tuple[list[int], npt.NDArray[np.float32], list[int]]] = {}

    def of(self, length: int) -> tuple[list[int], npt.NDArray[np.float32], list[int]]:
        """A prompt, the logits of each of its tokens, and the greedy tokens behind it."""
        if length not in self._known:
            import torch

            ids = np.random.default_rng(length).integers(0, self.vocabulary, length).tolist()
            prompt = torch.tensor([ids])
            with torch.no_grad():
                logits = self.module(prompt).logits[0].float().numpy()
                text = self.module.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=self.steps,
                    do_sample=False,
                )
            self._known[length] = ids, logits, text[0, length:].tolist()
        return self._known[length]


def compare(lm: LanguageModel, reference: Reference, length: int) -> Agreement:
    """How far a language model agrees with the reference for a prompt of a length."""
    ids, logits, expected = reference.of(length)
    largest = float(np.abs(logits).max())
    error = float(np.abs(lm.logits(ids) - logits).max()) / largest
    tokens = [token.id for token in lm.generate(ids, len(expected), stop_at_end=False)]
    equal = next((n for n, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b), len(expected))
    lead = None
    if equal < len(expected):
        import torch

        with torch.no_grad():
            row = reference.module(torch.tensor([[*ids, *expected[:equal]]])).logits[0, -1]
        lead = float(row[expected[equal]] - row[tokens[equal]]) / largest
    return Agreement(length, error, equal, len(expected), len(set(expected)), lead)


def compare_all(lm: LanguageModel, reference: Reference, lengths: Sequence[int]) -> list[Agreement]:
    """`compare` for prompts of several lengths."""
    return [compare(lm, reference, length) for length in lengths]
