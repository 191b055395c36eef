"""All cases by name."""

from __future__ import annotations

import functools

from benchmarks.jax_functions import arrays, computation, elementwise
from benchmarks.jax_functions.case import Cases


@functools.cache
def cases() -> Cases:
    """Every case of the list, in the order in which it is written."""
    return elementwise.CASES | arrays.CASES | computation.CASES
