"""What speculation needs of a language model."""

from __future__ import annotations

from typing import Protocol

from mansard.api.model import Model
from mansard.language.description import Description


class OpenedModel(Protocol):
    """A `mansard.language.LanguageModel`, as its draft sees it, or as it sees its draft."""

    model: Model
    description: Description

    def device_names(self) -> set[str]:
        """The devices that generation runs on."""

    def interrupt(self) -> None:
        """End the text that is being generated, and forget what the cache holds."""
