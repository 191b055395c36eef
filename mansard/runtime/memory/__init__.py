"""Stores, weights, inputs and outputs in the memory of devices."""
