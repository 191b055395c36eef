"""Language models: text in, text out, over the methods of a compiled decoder."""

from mansard.language.language_model import LanguageModel
from mansard.language.loading import load_lm

__all__ = ["LanguageModel", "load_lm"]
