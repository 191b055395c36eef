"""Rotary position embedding: the frequencies of each pair of elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.errors import ImportModelError

SCALINGS = ("default", "linear", "llama3", "yarn")


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
    fast_rotations: float = 32.0
    slow_rotations: float = 1.0
    """With "yarn": rotations over the original positions from which frequencies are kept, and up to which
    they are divided by the factor."""
    whole_pairs: bool = True
    """With "yarn": whether the pairs where that begins and ends are rounded outwards."""
    magnitude: float = 1.0
    """Of the rotated vectors: cosines and sines are multiplied by it."""

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
        if self.scaling == "yarn":
            return self._yarn()
        return plain

    def _yarn(self) -> npt.NDArray[np.float32]:
        """From pairs that turn fast, which are kept, to those that turn slowly, which are divided by the
        factor, the share of each changes linearly with the pair (Peng et al., 2023, arXiv:2309.00071)."""
        numbers = np.arange(0, self.dim, 2, dtype=np.int64).astype(np.float32) / np.float32(self.dim)
        wavelengths = np.power(np.float32(self.theta), numbers).astype(np.float32)
        low, high = self._pair(self.fast_rotations), self._pair(self.slow_rotations)
        if self.whole_pairs:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        width = np.float32(high - low if high != low else 0.001)
        pairs = np.arange(self.dim // 2, dtype=np.float32)
        divided = np.clip((pairs - np.float32(low)) / width, np.float32(0), np.float32(1))
        kept = np.float32(1) - divided
        one = np.float32(1)
        mixed = one / (np.float32(self.factor) * wavelengths) * (one - kept) + one / wavelengths * kept
        return np.asarray(mixed, np.float32)

    def _pair(self, rotations: float) -> float:
        """The pair, as a real number, that turns so often over the original positions."""
        turns = math.log(self.original_positions / (rotations * 2 * math.pi))
        return self.dim * turns / (2 * math.log(self.theta))

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
    positions = config.get("max_position_embeddings", 8192)
    original = given.get("original_max_position_embeddings", positions)
    factor = given.get("factor") or (positions / original if kind == "yarn" else 1.0)
    return Rotary(
        int(head_dim * part),
        float(theta),
        kind,
        float(factor),
        float(given.get("low_freq_factor", 1.0)),
        float(given.get("high_freq_factor", 4.0)),
        int(original),
        float(given.get("beta_fast") or 32.0),
        float(given.get("beta_slow") or 1.0),
        bool(given.get("truncate", True)),
        _magnitude(given, factor) if kind == "yarn" else 1.0,
    )


def _magnitude(given: Mapping[str, Any], factor: float) -> float:
    """The scale of rotated vectors with "yarn": as given, or from the logarithm of the factor."""
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    numerator, denominator = given.get("mscale"), given.get("mscale_all_dim")
    return scale(numerator) / scale(denominator) if numerator and denominator else scale(1.0)
