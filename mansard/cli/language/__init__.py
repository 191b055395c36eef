"""Commands of language models."""
