"""Failing models made small: `mansard reduce`."""
