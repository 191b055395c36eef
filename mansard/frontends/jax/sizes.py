"""Symbolic sizes of JAX as dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mansard.dims import DimLike
from mansard.frontends.emission.symbolic_sizes import SymbolicSizes


class Sizes(SymbolicSizes):
    """The dims that symbolic sizes become."""

    def shape(self, shape: Sequence[Any]) -> tuple[DimLike, ...]:
        """A shape of numbers and symbolic expressions, which print as ``2*b + floordiv(c, 2)``."""
        return tuple(d if isinstance(d, int) else self.expression(str(d)) for d in shape)
