"""The cases: each architecture with its inputs and the sizes that vary."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.model_zoo.weights import Array

BATCH = "batch"
Size = int | str
"""A size, or the name of one that varies, possibly ``8*name`` or ``8*name+1``."""


@dataclass(frozen=True)
class Input:
    """An input: its shape, an image's as (N, C, H, W), and what its numbers are."""

    name: str
    shape: tuple[Size, ...]
    kind: str = "real"
    """``real``, ``ids`` below ``limit``, or ``mask``."""
    limit: int = 0

    @property
    def image(self) -> bool:
        """Whether frameworks have it in their own layout."""
        return len(self.shape) == 4

    def array(self, sizes: Mapping[str, int]) -> Array:
        """Numbers for sizes; those of names are among them."""
        shape = tuple(value_of(d, sizes) for d in self.shape)
        rng = np.random.default_rng(len(self.name))
        if self.kind == "ids":
            return rng.integers(0, self.limit, shape).astype(np.int32)
        if self.kind == "mask":
            return (np.arange(shape[-1]) < max(1, shape[-1] - 3)).astype(np.float32) * np.ones(
                shape, np.float32
            )
        return rng.standard_normal(shape).astype(np.float32)


def value_of(size: Size, sizes: Mapping[str, int]) -> int:
    """A size in numbers."""
    if isinstance(size, int):
        return size
    factor, name, offset = parts_of(size)
    return factor * sizes[name] + offset


def parts_of(size: str) -> tuple[int, str, int]:
    """The factor, name and offset of a size that varies."""
    product, _, offset = size.partition("+")
    factor, _, name = product.rpartition("*")
    return int(factor or 1), name, int(offset or 0)


@dataclass(frozen=True)
class Case:
    """An architecture. ``usual`` are the sizes of the compiled static model and of one call of the dynamic
    one, ``other`` those of another call; ``ranges`` what the dynamic model takes."""

    name: str
    inputs: tuple[Input, ...]
    usual: Mapping[str, int]
    other: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    family: str = "vision"

    @property
    def architecture(self) -> Callable[..., Any]:
        """The function of a vocabulary and inputs."""
        module = importlib.import_module(f"benchmarks.model_zoo.networks.{self.family}")
        result: Callable[..., Any] = getattr(module, self.name)
        return result

    def arrays(self, sizes: Mapping[str, int]) -> list[Array]:
        """The inputs of a call, images as (N, C, H, W)."""
        return [x.array(sizes) for x in self.inputs]


def _pixels(height: Size, width: Size) -> tuple[Input, ...]:
    return (Input("pixels", (BATCH, 3, height, width)),)


ONE, TWO, UP_TO_4 = {BATCH: 1}, {BATCH: 2}, {BATCH: (1, 4)}
CASES = (
    Case(
        "mobilebert",
        (Input("ids", (BATCH, "length"), "ids", 30522), Input("mask", (BATCH, "length"), "mask")),
        {BATCH: 1, "length": 128}, {BATCH: 2, "length": 37}, {BATCH: (1, 4), "length": (4, 384)},
        "sequences",
    ),
    Case(
        "deeplab_v3", _pixels("16*h+1", "16*w+1"), {BATCH: 1, "h": 16, "w": 16}, {BATCH: 2, "h": 7, "w": 10},
        {BATCH: (1, 4), "h": (2, 32), "w": (2, 32)},
    ),
    Case(
        "resnet50", _pixels("32*h", "32*w"), {BATCH: 1, "h": 7, "w": 7}, {BATCH: 2, "h": 5, "w": 4},
        {BATCH: (1, 4), "h": (2, 16), "w": (2, 16)},
    ),
    Case("vit_small", _pixels(224, 224), ONE, TWO, UP_TO_4),
    Case(
        "posenet", _pixels("32*h", "32*w"), {BATCH: 1, "h": 8, "w": 8}, {BATCH: 2, "h": 5, "w": 7},
        {BATCH: (1, 4), "h": (2, 16), "w": (2, 16)},
    ),
    Case("detector", _pixels(320, 320), ONE, TWO, UP_TO_4),
    Case(
        "speech", (Input("frames", (BATCH, 100, 40)),), ONE, TWO, UP_TO_4, "sequences",
    ),
    Case(
        "unet", _pixels("16*h", "16*w"), {BATCH: 1, "h": 8, "w": 8}, {BATCH: 2, "h": 5, "w": 3},
        {BATCH: (1, 4), "h": (2, 16), "w": (2, 16)},
    ),
    Case(
        "translator",
        (
            Input("source", (BATCH, "length"), "ids", 16000), Input("mask", (BATCH, "length"), "mask"),
            Input("target", (BATCH, "written"), "ids", 16000),
        ),
        {BATCH: 1, "length": 48, "written": 32}, {BATCH: 2, "length": 19, "written": 7},
        {BATCH: (1, 4), "length": (2, 128), "written": (2, 128)}, "sequences",
    ),
    Case(
        "diffusion",
        (
            Input("noisy", (BATCH, 4, "4*h", "4*w")), Input("time", (BATCH, 128)),
            Input("context", (BATCH, 77, 256)), Input("rates", (2,)),
        ),
        {BATCH: 1, "h": 8, "w": 8}, {BATCH: 2, "h": 5, "w": 6},
        {BATCH: (1, 4), "h": (2, 16), "w": (2, 16)}, "sequences",
    ),
)  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
