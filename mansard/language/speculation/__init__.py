"""Speculation: tokens are proposed cheaply and verified several at a time, and the text stays the model's."""

from mansard.language.speculation.draft import DraftModel
from mansard.language.speculation.lookup import TextLookup
from mansard.language.speculation.speculation import Speculation
from mansard.language.speculation.stats import SpeculationStats

__all__ = ["DraftModel", "Speculation", "SpeculationStats", "TextLookup"]
