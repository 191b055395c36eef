"""Layers of quantised networks."""
