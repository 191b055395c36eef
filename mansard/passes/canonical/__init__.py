"""Passes towards the canonical form: one set of ops, no needless copies, constants folded."""
