"""Calls of a language model's methods, for several sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.api.model import Model
from mansard.errors import InputError
from mansard.language.description import Description
from mansard.language.generation import Sampling, Score, Settings

Chosen = tuple[int, Score | None]
"""A token, and its score where the call was a scored one."""
IDLE = Sampling().rows(0)
"""Settings of a place whose token nobody reads."""


class Methods:
    """The methods ``prefill`` and ``decode`` of a compiled model, and their scored forms if it has them."""

    def __init__(self, model: Model) -> None:
        self.description = Description.from_info(model.plan.info)
        self._prefill = {False: model.method("prefill")}
        self._decode = {False: model.method("decode")}
        self.scores = "decode_scored" in model.plan.methods
        """Whether the model gives log-probabilities."""
        if self.scores:
            self._prefill[True] = model.method("prefill_scored")
            self._decode[True] = model.method("decode_scored")

    def check_scores(self) -> None:
        """Raise InputError for a model that gives no log-probabilities."""
        if not self.scores:
            raise InputError(
                "the model gives no log-probabilities: compile it with load_lm(…, logprobs=True)"
            )

    def read(
        self, place: int, part: Sequence[int], position: int, settings: Settings, scored: bool = False
    ) -> Chosen:
        """Bring a piece of a prompt into the cache of a sequence; the token that would follow it."""
        inputs: dict[str, Any] = {
            "tokens": np.array([part], np.int64),
            "positions": np.array([position], np.int64),
            "last": np.array([len(part) - 1], np.int64),
            "settings": settings[0],
            "draws": settings[1],
        }
        if self.description.sequences > 1:
            inputs["slot"] = np.array([place], np.int64)
        return _chosen(self._prefill[scored](**inputs), scored)[0]

    def advance(
        self, positions: Sequence[int], settings: Sequence[Settings], scored: bool = False
    ) -> list[Chosen]:
        """Feed every sequence the token chosen for it last; the ones that follow."""
        floats: npt.NDArray[np.float32] = np.concatenate([rows[0] for rows in settings])
        draws: npt.NDArray[np.int64] = np.concatenate([rows[1] for rows in settings])
        results = self._decode[scored](positions=np.array(positions, np.int64), settings=floats, draws=draws)
        return _chosen(results, scored)


def _chosen(results: Any, scored: bool) -> list[Chosen]:
    if not scored:
        return [(int(token), None) for token in results]
    tokens, scores, ranked, ranked_scores = (result.tolist() for result in results)
    return [
        (token, Score(score, tuple(zip(best, best_scores, strict=True))))
        for token, score, best, best_scores in zip(tokens, scores, ranked, ranked_scores, strict=True)
    ]
