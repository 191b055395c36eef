"""Drivers: one folder per backend, each with a runtime half and, apart from it, a compiler half."""
