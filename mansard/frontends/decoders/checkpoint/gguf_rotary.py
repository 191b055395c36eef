"""Llama 3's scaling of rotary frequencies, from the divisors that a GGUF file has in its place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.errors import ImportModelError
from mansard.formats.gguf_file import GgufTensor

Array = npt.NDArray[np.float64]
_PUBLISHED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Of every Llama 3 that has the scaling; llama.cpp's converter assumes the last."""
_TOLERANCE = 1e-4


def llama3_scaling(tensor: GgufTensor, theta: float, rotated: int, source: str) -> dict[str, Any]:
    """Parameters of ``transformers``' scaling "llama3" that divide the frequencies by the tensor's factors.

    Factors are 1 for short wavelengths and the largest for long ones; between them, their inverses are linear
    in the inverse wavelength, which determines the other parameters up to a common factor. Raises
    ImportModelError for factors of another kind.
    """
    factors = tensor.data.view(np.float32).astype(np.float64) if tensor.type_name == "F32" else np.zeros(0)
    if factors.size != rotated // 2:
        raise ImportModelError(
            f"rope_freqs.weight of {source} is not a vector of {rotated // 2} numbers in F32"
        )
    factor = float(factors.max())
    if np.allclose(factors, 1.0):
        return {}
    turns = theta ** (-np.arange(0, rotated, 2) / rotated) / (2 * math.pi)  # per position
    for parameters in (_PUBLISHED, _fitted(factors, factor, turns)):
        if parameters and np.allclose(_factors(turns, factor, parameters), factors, rtol=_TOLERANCE):
            return {"rope_type": "llama3", "factor": factor, **parameters}
    raise ImportModelError(f"rope_freqs.weight of {source} follows no known scaling of rotary frequencies")


def _factors(turns: Array, factor: float, parameters: dict[str, Any]) -> Array:
    """The factors that these parameters make; ``turns`` are inverse wavelengths."""
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    smooth = (parameters["original_max_position_embeddings"] * turns - low) / (high - low)
    between: Array = 1 / ((1 - np.clip(smooth, 0, 1)) / factor + np.clip(smooth, 0, 1))
    return between


def _fitted(factors: Array, factor: float, turns: Array) -> dict[str, Any]:
    """Parameters for the factors between 1 and the largest; none where these are too few to tell."""
    between = (factors > 1 + _TOLERANCE) & (factors < factor * (1 - _TOLERANCE))
    if between.sum() < 2:
        return {}
    smooth = (1 / factors[between] - 1 / factor) / (1 - 1 / factor)
    slope, start = np.polyfit(turns[between], smooth, 1)
    if start >= 0 or slope <= 0:
        return {}
    # smooth = (positions * turns - low) / (high - low), with low near 1 and positions an integer.
    positions = round(-slope / start)
    low = -positions * start / slope
    return {
        "low_freq_factor": low,
        "high_freq_factor": low + positions / slope,
        "original_max_position_embeddings": positions,
    }
