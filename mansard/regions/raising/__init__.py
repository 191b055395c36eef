"""From the Generics of a canonical Graph to named ops."""

from mansard.regions.raising.graph import raise_graph
from mansard.regions.raising.ops import Raised

__all__ = ["Raised", "raise_graph"]
