"""A server of a language model, for tests."""
