"""What a compilation gives: the plan, and what it refers to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mansard.cache import Counts
from mansard.plan.plan import Plan, WeightSpec


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model in memory: ``executables`` maps artifact entries to their bytes, ``weights``
    pairs each WeightSpec with a callable that gives its array."""

    plan: Plan
    executables: Mapping[str, bytes]
    weights: tuple[tuple[WeightSpec, Callable[[], npt.NDArray[np.generic]]], ...]
    timings: Mapping[str, float]
    """Seconds of each stage of the compilation."""
    cache: Counts = field(default_factory=Counts)
    """Distinct kernels that were found in the cache (hits) and that were compiled (misses)."""
    sources: bytes | None = None
    """The dispatches and schedule parameters of the kernels (`mansard.compiler.sources`)."""
