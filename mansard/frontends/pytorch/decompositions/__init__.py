"""Decompositions of ops that torch-mlir lacks or lowers incorrectly, by family."""
