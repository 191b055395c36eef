"""Rotary position embedding: the frequencies of each pair of elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.errors import ImportModelError

SCALINGS = ("default", "linear", "llama3")


@dataclass(frozen=True)
class Rotary:
    """Pairs (x[i], x[i + dim/2]) of the first ``dim`` elements of a head are rotated by
    ``position * theta**(-2 i / dim)`` (Su et al., 2021, arXiv:2104.09864), with ``scaling`` changing the
    frequencies for contexts longer than those of training.
    """

    dim: int
    theta: float
    scaling: str = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192

    def frequencies(self) -> npt.NDArray[np.float32]:
        """Radians per position of each pair: f32 of shape (dim / 2)."""
        exponents = np.arange(0, self.dim, 2, dtype=np.int64).astype(np.float32) / np.float32(self.dim)
        plain: npt.NDArray[np.float32] = (
            np.float32(1.0) / np.power(np.float32(self.theta), exponents)
        ).astype(np.float32)
        if self.scaling == "linear":
            plain = (plain / np.float32(self.factor)).astype(np.float32)
        if self.scaling == "llama3":
            return self._llama3(plain)
        return plain

    def _llama3(self, plain: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Long wavelengths are divided by the factor, short ones kept, those between interpolated (Llama
        3.1)."""
        wavelengths = 2 * math.pi / plain
        low, high = self.low_frequency_factor, self.high_frequency_factor
        smooth = (self.original_positions / wavelengths - low) / (high - low)
        mixed = (1 - smooth) * plain / self.factor + smooth * plain
        result = np.where(wavelengths > self.original_positions / low, plain / self.factor, mixed)
        result = np.where(wavelengths < self.original_positions / high, plain, result)
        return result.astype(np.float32)


def rotary_of(
    config: Mapping[str, Any], head_dim: int, parameters: Mapping[str, Any] | None = None
) -> Rotary:
    """The rotary embedding that a configuration states, in its old form (``rope_theta``, ``rope_scaling``) or
    in the new one (``rope_parameters``). Raises ImportModelError for a scaling that is not known.
    """
    given = dict(parameters or config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in SCALINGS:
        raise ImportModelError(f"rotary scaling {kind!r} is not supported; supported: {', '.join(SCALINGS)}")
    theta = given.get("rope_theta", config.get("rope_theta", 10000.0))
    part = given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    return Rotary(
        int(head_dim * part),
        float(theta),
        kind,
        float(given.get("factor", 1.0)),
        float(given.get("low_freq_factor", 1.0)),
        float(given.get("high_freq_factor", 4.0)),
        int(given.get("original_max_position_embeddings", config.get("max_position_embeddings", 8192))),
    )
