"""What a batch engine has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineStats:
    """Counts since the engine began: tokens of prompts that were read, and seconds that took; tokens of
    prompts that a cache held already; tokens generated, decode steps, and their seconds; requests that gave
    up their pages to others, and were read again."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    reused_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    preempted: int = 0

    def count_prompt(self, tokens: int, seconds: float) -> None:
        """A piece of a prompt was read."""
        self.prompt_tokens += tokens
        self.prompt_seconds += seconds

    def count_step(self, seconds: float) -> None:
        """A decode step was made."""
        self.steps += 1
        self.step_seconds += seconds
