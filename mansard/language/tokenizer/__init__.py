"""Tokenizers of language models: text to token ids and back, streams of text, chat templates.

Nothing here needs the compiler: with an artifact, this is what generating text takes.
"""

from mansard.language.tokenizer.loading import find_tokenizer, load_tokenizer
from mansard.language.tokenizer.stream import TextStream
from mansard.language.tokenizer.tokenizer import Tokenizer

__all__ = ["TextStream", "Tokenizer", "find_tokenizer", "load_tokenizer"]
