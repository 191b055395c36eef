"""Calls of a language model's methods, for several sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.api.model import Model
from mansard.errors import InputError
from mansard.language.description import Description
from mansard.language.generation import Sampling, Score, Settings, restricts
from mansard.language.prompts import prompt_piece
from mansard.runtime.calls.pending_call import PendingCall

Table = npt.NDArray[np.int64]
"""Which pages hold the positions of sequences, (sequences, pages of a context)."""
Chosen = tuple[int, Score | None]
"""A token, and its score where the call was a scored one."""
IDLE = Sampling().rows(0)
"""Settings of a place whose token nobody reads."""
UNRESTRICTED = "decode_unrestricted"
"""The method ``decode`` for texts whose tokens nothing but a temperature chooses: without top-k, top-p and
min-p, whose sorts take as long as some layers on a GPU."""
_LEAST_ROWS = 16


def unrestricted(model: Model) -> Model:
    """The method `UNRESTRICTED` of a model, or what serves in its place where an artifact has none."""
    return model.method(UNRESTRICTED if UNRESTRICTED in model.plan.methods else "decode")


def takes_sequences(decode: Model) -> bool:
    """Whether steps of a method that are submitted together take less time than one by one."""
    slots = decode.bind().slots
    return len(slots) == 1 and slots[0].device.capabilities.command_sequences


def gives_scores(model: Model) -> bool:
    """Whether a model gives log-probabilities."""
    return "decode_scored" in model.plan.methods


class Methods:
    """The methods ``prefill`` and ``decode`` of a compiled model, and their scored forms if it has them."""

    def __init__(self, model: Model) -> None:
        self.description = Description.from_info(model.plan.info)
        self._prefill = {False: model.method("prefill")}
        self._decode = {False: model.method("decode")}
        self._unrestricted = unrestricted(model)
        self.scores = gives_scores(model)
        """Whether the model gives log-probabilities."""
        if self.scores:
            self._prefill[True] = model.method("prefill_scored")
            self._decode[True] = model.method("decode_scored")
        self._copy = model.method("copy_prefix") if "copy_prefix" in model.plan.methods else None

    def check_scores(self) -> None:
        """Raise InputError for a model that gives no log-probabilities."""
        if not self.scores:
            raise InputError(
                "the model gives no log-probabilities: compile it with load_lm(…, logprobs=True)"
            )

    @property
    def copies(self) -> bool:
        """Whether a sequence can begin with a copy of another one's cache."""
        return self._copy is not None

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first positions of one sequence's cache to another. Their number is rounded up, so that
        few shapes are recorded; what stands behind them is overwritten before it is read."""
        assert self._copy is not None
        rows = min(max(_LEAST_ROWS, 1 << (count - 1).bit_length()), self.description.context)
        self._copy(
            rows=np.arange(rows, dtype=np.int64),
            source=np.array([source], np.int64),
            target=np.array([target], np.int64),
        )

    def read(
        self,
        place: int,
        part: Sequence[int],
        position: int,
        settings: Settings,
        scored: bool = False,
        priority: int = 0,
        table: Table | None = None,
    ) -> Chosen:
        """Bring a piece of a prompt into the cache of a sequence, whose pages ``table`` (1, pages) has where
        it is paged; the token that would follow it. Calls of other models on the same devices that have a
        higher ``priority`` go first."""
        tokens, last = prompt_piece(part, self._prefill[scored].inputs)
        inputs: dict[str, Any] = {
            "tokens": tokens,
            "positions": np.array([position], np.int64),
            "last": last,
            "settings": settings[0],
            "draws": settings[1],
        }
        if self.description.sequences > 1:
            inputs["slot"] = np.array([place], np.int64)
        if table is not None:
            inputs["pages"] = table
        return _chosen(self._prefill[scored](priority=priority, **inputs), scored)[0]

    def advance(
        self,
        positions: Sequence[int],
        settings: Sequence[Settings],
        scored: bool = False,
        priority: int = 0,
        table: Table | None = None,
    ) -> list[Chosen]:
        """Feed every sequence the token chosen for it last; the ones that follow."""
        inputs = _step_inputs(positions, settings, table)
        return _chosen(self._step(inputs, scored)(**inputs, priority=priority), scored)

    def begin_steps(
        self,
        positions: Sequence[Sequence[int]],
        settings: Sequence[Settings],
        scored: bool,
        priority: int,
        table: Table | None = None,
    ) -> list[PendingStep]:
        """Submit what `advance` does for each of the ``positions``, behind what was submitted before."""
        steps = [_step_inputs(each, settings, table) for each in positions]
        session = self._step(steps[0], scored).bind()
        prepared = [session.signature.prepare((), inputs) for inputs in steps]
        return [PendingStep(call, scored) for call in session.begin_all(prepared, priority)]

    def _step(self, inputs: Mapping[str, Any], scored: bool) -> Model:
        """The method for a step with the settings of all sequences."""
        if scored or restricts((inputs["settings"], inputs["draws"])):
            return self._decode[scored]
        return self._unrestricted

    def takes_sequences(self) -> bool:
        """Whether steps that are submitted together take less time than one by one."""
        return takes_sequences(self._decode[False])

    def runs_ahead(self) -> bool:
        """Whether a device has a queue of its own: steps are best submitted before the last one ends."""
        slots = self._decode[False].bind().slots
        return not all(slot.device.capabilities.late_binding for slot in slots)


class PendingStep:
    """A decode step that was submitted."""

    def __init__(self, call: PendingCall, scored: bool) -> None:
        self._call, self._scored = call, scored

    def result(self) -> list[Chosen]:
        """Wait for the tokens of all sequences."""
        results = self._call.result()
        return _chosen(tuple(results) if self._scored else results[0], self._scored)

    def cancel(self) -> None:
        """Do without the tokens."""
        self._call.cancel()


def _step_inputs(
    positions: Sequence[int], settings: Sequence[Settings], table: Table | None
) -> dict[str, Any]:
    inputs = {
        "positions": np.array(positions, np.int64),
        "settings": np.concatenate([rows[0] for rows in settings]),
        "draws": np.concatenate([rows[1] for rows in settings]),
    }
    return inputs if table is None else {**inputs, "pages": table}


def _chosen(results: Any, scored: bool) -> list[Chosen]:
    if not scored:
        return [(int(token), None) for token in results]
    tokens, scores, ranked, ranked_scores = (result.tolist() for result in results)
    return [
        (token, Score(score, tuple(zip(best, best_scores, strict=True))))
        for token, score, best, best_scores in zip(tokens, scores, ranked, ranked_scores, strict=True)
    ]
