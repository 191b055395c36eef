"""SPIR-V modules and pipelines."""
