"""Passes that choose the memory layout of tensors and weights."""
