"""Frontends: each turns models of one kind into a Graph.

They are found by entry point (`mansard.frontends.registry`); `mansard.frontends.frontend` is their contract.
"""

from mansard.frontends.frontend import Frontend
from mansard.frontends.registry import frontends, import_model

__all__ = ["Frontend", "frontends", "import_model"]
