"""The demonstration behind ``mansard demo``: sentence embeddings with a real model.

It uses Mansard as any program would, through `mansard.compile`; nothing in Mansard depends on it.
"""
