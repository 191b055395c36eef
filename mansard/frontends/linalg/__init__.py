"""Linalg-on-tensors MLIR, the dialect that other frontends lower to, as a Graph (`module`)."""
