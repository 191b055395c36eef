"""Kernels of other CPUs, run under qemu-user."""
