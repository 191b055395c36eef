"""Passes that choose how tensors and weights lie in memory."""
