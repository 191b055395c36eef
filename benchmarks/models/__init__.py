"""Whole models, beside other runtimes."""
