"""Kernel IR to LLVM IR, and on to position-independent code for a CPU."""
