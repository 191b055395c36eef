"""Kernels for matrix units, which run in an emulator here."""
