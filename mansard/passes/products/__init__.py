"""Passes on contractions: scales folded into weights, integer products, reduced precision."""
