"""Images of textures in a dozen classes, made from a seed: for networks whose weights are not trained.

Colours, sizes, places, noise and light vary within a class; what differs between classes is the pattern.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

CLASSES = (
    "rows", "columns", "diagonals", "checks", "disks", "rings",
    "crosses", "grid", "zigzag", "blotches", "grain", "plain",
)  # fmt: skip
PERIODS = (9.0, 15.0)
"""Pixels of one repetition of a pattern."""
COLOURS = 0.05
"""Standard deviation of the colours within a class; half of it in mosaics."""
NOISE = 0.06
"""Standard deviation of the noise on every pixel; colours are in 0 to 1."""


def images(count: int, size: int, seed: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Images (count, 3, size, size) of one texture each, around 0, and their classes (count,), in turn."""
    rng = np.random.default_rng(seed)
    classes = np.arange(count) % len(CLASSES)
    return np.stack([_lit(_texture(rng, int(c), size, COLOURS), rng) for c in classes]), classes


def mosaics(count: int, size: int, seed: int, regions: int = 4) -> tuple[Array, npt.NDArray[np.int64]]:
    """Images (count, 3, size, size) of ``regions`` textures each, and each pixel's class.

    Regions are the cells of random points: each pixel belongs to the nearest.
    """
    rng = np.random.default_rng(seed)
    made, labels = [], []
    order = np.concatenate(
        [rng.permutation(len(CLASSES)) for _ in range(-(-count * regions // len(CLASSES)))]
    )
    for number in range(count):
        chosen = order[number * regions :][:regions]
        centres = rng.uniform(0, size, (regions, 2)).astype(np.float32)
        y, x = _places(size)
        cell = np.argmin([(y - a) ** 2 + (x - b) ** 2 for a, b in centres], axis=0)
        textures = np.stack([_texture(rng, int(c), size, COLOURS / 2) for c in chosen])
        image = np.take_along_axis(textures, cell[None, None], axis=0)[0]
        made.append(_lit(image, rng))
        labels.append(chosen[cell])
    return np.stack(made), np.stack(labels).astype(np.int64)


def _places(size: int) -> tuple[Array, Array]:
    y, x = np.mgrid[:size, :size].astype(np.float32)
    return y, x


def _texture(rng: np.random.Generator, number: int, size: int, spread: float) -> Array:
    """One pattern between two colours: (3, size, size) in 0 to 1."""
    light = _pattern(rng, CLASSES[number], size)
    usual = np.random.default_rng(number).uniform(0.1, 0.9, (2, 3))
    first, second = usual + rng.normal(0, spread, (2, 3))
    colours = first[:, None, None] * (1 - light) + second[:, None, None] * light
    return np.asarray(colours, np.float32)


def _lit(image: Array, rng: np.random.Generator) -> Array:
    """An image with light that falls off to one side, and noise; in -2 to 2 or so."""
    y, x = _places(image.shape[-1])
    slope = rng.uniform(-0.1, 0.1, 2) / image.shape[-1]
    noise = rng.standard_normal(image.shape, np.float32) * NOISE
    return np.asarray((image * (1 + slope[0] * y + slope[1] * x) + noise - 0.5) * 4, np.float32)


def _pattern(rng: np.random.Generator, name: str, size: int) -> Array:
    """A pattern of 0 to 1 by pixel."""
    period, turned = rng.uniform(*PERIODS), rng.uniform(-0.12, 0.12)
    y, x = _places(size)
    y, x = y * np.cos(turned) + x * np.sin(turned), x * np.cos(turned) - y * np.sin(turned)
    v, u = y / period + rng.uniform(), x / period + rng.uniform()
    in_v, in_u = v % 1 - 0.5, u % 1 - 0.5
    distance = np.hypot(in_v, in_u)
    width = rng.uniform(0.1, 0.16)
    patterns = {
        "rows": lambda: in_v > 0,
        "columns": lambda: in_u > 0,
        "diagonals": lambda: (u + v) % 1 > 0.5,
        "checks": lambda: (in_v > 0) ^ (in_u > 0),
        "disks": lambda: distance < 0.32,
        "rings": lambda: np.abs(distance - 0.32) < width / 2,
        "crosses": lambda: (np.minimum(abs(in_v), abs(in_u)) < width / 2) & (distance < 0.35),
        "grid": lambda: np.minimum(abs(in_v), abs(in_u)) < width / 2,
        "zigzag": lambda: (v + np.abs(in_u)) % 1 > 0.5,
        "blotches": lambda: _smooth(rng, size, period / 2) > 0,
        "grain": lambda: _smooth(rng, size, 1.5),
        "plain": lambda: np.zeros_like(y),
    }
    return np.clip(np.asarray(patterns[name](), np.float32), 0, 1)


def _smooth(rng: np.random.Generator, size: int, width: float) -> Array:
    """Noise without details below ``width`` pixels, of variance 1."""
    frequencies = np.fft.fftfreq(size)[:, None] ** 2 + np.fft.rfftfreq(size)[None] ** 2
    spectrum = np.fft.rfft2(rng.standard_normal((size, size)))
    smooth = np.fft.irfft2(spectrum * np.exp(-frequencies * (np.pi * width) ** 2 / 2), s=(size, size))
    return np.asarray(smooth / smooth.std(), np.float32)
