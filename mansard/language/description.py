"""What a compiled language model says about itself, kept with its plan."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mansard.errors import ArtifactError, InputError

_KEY = "language_model"
"""Of `mansard.plan.plan.Plan.info`."""


@dataclass(frozen=True)
class Description:
    """A language model's limits: ``context`` positions of each of ``sequences`` sequences, which share
    ``pages`` pages of ``page_positions`` each (0: every sequence has its own memory), up to ``chunk`` new
    tokens in a prefill, the tokens that end a text, whether a sequence can be continued from any of its
    positions (``rewinds``) or from where it stands only, and how many proposed tokens the method ``verify``
    takes at most (0: there is none)."""

    family: str
    vocabulary: int
    context: int
    chunk: int
    sequences: int
    end_tokens: tuple[int, ...]
    rewinds: bool = True
    proposals: int = 0
    pages: int = 0
    page_positions: int = 0
    stored_types: Mapping[str, str] = field(default_factory=dict)
    """What became of weights that the checkpoint has as small integers, by their type in the file: how many
    are kept as they are stored, how many had to be unpacked."""

    def to_info(self) -> dict[str, str]:
        """An entry for the plan's info."""
        return {_KEY: json.dumps(dataclasses.asdict(self))}

    def check_tokens(self, ids: Sequence[int]) -> None:
        """Raise InputError for a token that the vocabulary does not have."""
        wrong = next((token for token in ids if not 0 <= token < self.vocabulary), None)
        if wrong is not None:
            raise InputError(f"token {wrong} is outside the vocabulary of {self.vocabulary}")

    @staticmethod
    def from_info(info: Mapping[str, str]) -> Description:
        """Read back `to_info`. Raises InputError for a model that is no language model, ArtifactError for a
        description that is none."""
        if _KEY not in info:
            raise InputError(
                "the model is not a language model: mansard.load_lm takes a checkpoint's folder, a "
                ".gguf file, or an artifact that LanguageModel.save or mansard compile-llm wrote"
            )
        try:
            fields = json.loads(info[_KEY])
            return Description(**{**fields, "end_tokens": tuple(fields["end_tokens"])})
        except (ValueError, TypeError, KeyError) as error:
            raise ArtifactError(f"the description of the language model cannot be read: {error}") from error
