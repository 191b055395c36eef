"""Sessions that call a graph on a device, for measurements as in models."""

from __future__ import annotations

from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.hal import Device
from mansard.ir import Graph
from mansard.placement import PlacementOptions
from mansard.runtime.session import MAX_IN_FLIGHT, Session


def session_on(device: Device, graph: Graph, max_in_flight: int = MAX_IN_FLIGHT) -> Session:
    """A session that runs a whole graph on a device; the caller must close it.

    Raises errors under CompileError for a graph that the device cannot run.
    """
    compiled = compile_graph(graph, CompileOptions((device.info.id,), PlacementOptions(fallback="error")))
    resources, devices = (
        MemoryResources(compiled.executables, compiled.weights),
        {compiled.plan.devices[0].name: device},
    )
    return Session(compiled.plan, resources, devices, max_in_flight=max_in_flight)
