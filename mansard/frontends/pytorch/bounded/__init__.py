"""Sizes that depend on the content of tensors, as bounds with counts."""
