"""Kernels of one kind against what the machine can do, and beside libraries."""
