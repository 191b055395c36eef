"""Runs graphs compiled for one device, for comparison with the reference interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.ir import Graph
from mansard.ir.interpreter.graph import interpret
from mansard.placement import PlacementOptions
from mansard.testing.results import Arrays, compare, outputs, validate_spirv

__all__ = ["Arrays", "check", "compare", "compiled", "outputs", "run", "validate_spirv"]


def compiled(graph: Graph, *devices: str, placement: PlacementOptions | None = None) -> Model:
    """A model of the graph for devices, with its flat inputs and outputs; what a device cannot run is an
    error, not a fallback."""
    chosen = placement or PlacementOptions(fallback="error")
    result = compile_graph(replace(graph, interface=None), CompileOptions(targets=devices, placement=chosen))
    validate_spirv(result.plan, result.executables)
    return Model(result.plan, MemoryResources(result.executables, result.weights))


def run(graph: Graph, inputs: Sequence[npt.NDArray[np.generic]], *devices: str) -> Arrays:
    """The outputs of one call."""
    with compiled(graph, *devices) as model:
        return outputs(model, inputs)


def check(
    graph: Graph,
    inputs: Sequence[npt.NDArray[np.generic]],
    *devices: str,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> None:
    """Compare a call with the interpreter; ``atol`` is relative to the largest expected magnitude."""
    compare(run(graph, inputs, *devices), interpret(graph, inputs), rtol, atol)
