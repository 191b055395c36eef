"""How to compile: what the caller of the compiler chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mansard.compiler.dumps import Dump
from mansard.hal.device import HOST_DEVICE
from mansard.passes.products.quantisation import Quantisation
from mansard.placement import PlacementOptions

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, the work done and the work in all."""


@dataclass(frozen=True)
class CompileOptions:
    """How to compile. ``targets`` are target texts (``cpu``, ``vulkan+abi=all``, ``cpu:x86-64-v3``).

    ``start``, ``stop_after`` and ``skip`` name passes of `mansard.passes.pipeline`.
    """

    targets: tuple[str, ...] = (HOST_DEVICE,)
    placement: PlacementOptions = field(default_factory=PlacementOptions)
    progress: Progress | None = None
    dump: Dump | None = None
    precision: str = "f32"
    """How products with constant weights compute: as the model says, or bf16
    (`mansard.passes.products.demote`)."""
    quantisation: Quantisation | None = None
    """How the weights of products are stored (`mansard.passes.products.weight_only`); None: as they are."""
    check_indices: bool = True
    """Whether calls check that indices are in range (`mansard.passes.canonical.settle_asserts`)."""
    cache: bool = True
    """Whether compiled kernels are kept on disk, and taken from there (`mansard.cache`)."""
    start: str | None = None
    """The first pass to run, for a graph that went through those before it already."""
    stop_after: str | None = None
    """The last pass to run, for `mansard.compiler.lower_graph`."""
    skip: tuple[str, ...] = ()
    """Passes to leave out."""
