"""What the chip can do, and what that costs (`crossbar.toml`)."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Model:
    """The figures of a chip; seconds and joules by name."""

    name: str
    tiles: int
    rows: int
    columns: int
    weight_bits: int
    input_bits: int
    output_bits: int
    output_range: float
    seconds: Mapping[str, float]
    joules: Mapping[str, float]

    def blocks(self, depth: int, outputs: int) -> tuple[int, int]:
        """Tiles along the inputs and along the outputs of a weight."""
        return -(-depth // self.rows), -(-outputs // self.columns)

    def tiles_of(self, depth: int, outputs: int) -> int:
        """Tiles that a weight takes."""
        return math.prod(self.blocks(depth, outputs))

    def energy(self, vectors: int, depth: int, outputs: int) -> float:
        """Joules of a product of so many vectors: each input is converted for each column of tiles, each
        output for each row of them."""
        down, across = self.blocks(depth, outputs)
        inputs, sums = depth * across * self.joules["input"], outputs * down * self.joules["output"]
        return vectors * (inputs + sums + depth * outputs * self.joules["cell"])


@functools.cache
def model() -> Model:
    """The chip of `crossbar.toml`."""
    text = (Path(__file__).parent / "crossbar.toml").read_text()
    return Model(**tomllib.loads(text))
