"""What one HTTP request asks the engine for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mansard.language.generation import Sampling

Kind = Literal["completion", "chat"]


@dataclass(frozen=True)
class TextJob:
    """``choices`` texts for each of the ``prompts``, with up to ``count`` new tokens each (None: as far as
    the context reaches).

    ``ranked`` is how many of the most likely tokens are told with each token, None for no log-probabilities.
    """

    kind: Kind
    prompts: Sequence[Sequence[int]]
    choices: int = 1
    count: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    stop_at_end: bool = True
    ranked: int | None = None
    stream: bool = False
    include_usage: bool = False
    token_ids: bool = False
    priority: int = 0
    deadline: float | None = None

    @property
    def texts(self) -> int:
        """How many texts are generated."""
        return self.choices * len(self.prompts)

    def prompt(self, index: int) -> Sequence[int]:
        """The prompt of a choice."""
        return self.prompts[index // self.choices]

    def sampling_of(self, index: int) -> Sampling:
        """How the tokens of a choice are chosen: the seeds of a prompt's choices follow each other."""
        return replace(self.sampling, seed=self.sampling.seed + index % self.choices)


Headers = Mapping[str, str]
Body = Mapping[str, Any]
