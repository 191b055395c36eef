"""Placement of a model with several methods, which share weights and states."""

from mansard.placement.methods.method import Method, MethodUse
from mansard.placement.methods.place_methods import place_methods

__all__ = ["Method", "MethodUse", "place_methods"]
