"""What speculation achieved in a text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class SpeculationStats:
    """Counts of one generation."""

    windows: int = 0
    """Verifications, each of a window of proposals in one call."""
    proposed: int = 0
    accepted: int = 0
    """Proposals that were verified, and those that were right."""
    single: int = 0
    """Tokens of decode steps: where nothing was proposed, or proposals did not pay."""
    fault: str | None = None
    """Why speculation ended before the text did: the error of the draft model's device."""

    @property
    def acceptance(self) -> float:
        """The share of proposals that were right."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def tokens_per_window(self) -> float:
        """Tokens that a verification gave: the right proposals, and one more."""
        return (self.accepted + self.windows) / self.windows if self.windows else 0.0

    def to_json(self) -> dict[str, Any]:
        """The counts, and what follows from them."""
        derived = {"acceptance": self.acceptance, "tokens_per_window": self.tokens_per_window}
        return {**asdict(self), **derived}

    def __str__(self) -> str:
        text = (
            f"{self.windows} windows: {self.acceptance:.0%} of {self.proposed} proposals accepted, "
            f"{self.tokens_per_window:.2f} tokens each; {self.single} single steps"
        )
        return text if self.fault is None else f"{text}; ended early: {self.fault}"
