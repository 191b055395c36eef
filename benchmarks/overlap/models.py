"""Cases of `benchmarks.overlap` on real models: MiniLM with bf16 products and MobileNetV2 in int8 on a CPU, a
Vulkan device and the simulated NPU at once, with requests in flight.

Random weights; answers are compared with PyTorch's. The NPU is the plug-in's ``realtime`` one, slow enough
for a core of the host to compute its functions within their simulated time: commands that were late are
counted as overruns. A software Vulkan device takes the cores of the CPU device: with it the figures show
order and answers, not what three chips would gain.

A machine with a GPU may lack the frontend. ``python -m benchmarks.overlap.models FOLDER``, run where it is
installed, writes the imported graphs with an input and PyTorch's answer; ``benchmarks.overlap --graphs
FOLDER`` takes them from there. Large weights are random numbers that both make from a seed.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.paths import EXAMPLES, import_from
from benchmarks.overlap.case import (
    Result,
    check,
    compiled,
    measure,
    overruns,
    placed,
    register_npus,
    result_of,
)
from mansard import PlacementOptions, devices
from mansard.ir import Constant, Graph

REQUESTS, IN_FLIGHT = 12, 4
MIN_SHARE = 0.1
"""Of the dispatches, for every device, so that none is left out where another is faster at everything."""
TOLERANCES = {"minilm": 0.02, "mobilenet_v2": 0.15}
"""Largest difference as a part of the largest output. Numbers that round to another 8-bit step by a hair
spread through the network: PyTorch's own answer moves as much when the image changes by a millionth."""
FROM_PROFILE = "the commands' own times: the busiest device, or one request's critical path"


GRAPHS = "MANSARD_OVERLAP_GRAPHS"
"""Names the folder of imported graphs, if there is one."""
_FROM_SEED = ("minilm",)
"""Models of which large weights are made from a seed; others were quantised after some inputs with theirs."""
_LARGE = 1 << 17
"""Elements of a large weight."""
_DEVIATION = 0.02


@dataclass(frozen=True)
class Network:
    """An imported model with an input and PyTorch's answer."""

    graph: Graph
    precision: str
    x: np.ndarray[Any, Any]
    expected: np.ndarray[Any, Any]


def imported(case: str) -> tuple[Network, dict[str, tuple[int, ...]]]:
    """A model by PyTorch's frontend, and the shapes of its weights that are made from a seed."""
    import torch

    import_from(EXAMPLES)
    from three_devices import MODELS

    from mansard.frontends import import_model

    torch.manual_seed(0)
    module, x, precision = MODELS[case]()
    seeded = {}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if case in _FROM_SEED and parameter.numel() >= _LARGE:
                seeded[name] = tuple(parameter.shape)
                parameter.copy_(torch.from_numpy(_random(name, seeded[name])))
        expected = module(x).numpy()
    return Network(import_model(module, (x,)), precision, x.numpy(), expected), seeded


def write(folder: Path, case: str) -> None:
    """Write a model as ``CASE.graph`` and ``CASE.npz``. Raises SystemExit for weights without a name."""
    from mansard.ir.graph_data import graph_to_bytes

    network, seeded = imported(case)
    constants = {c.key: c for c in network.graph.constants.values()}
    names = {constant: key for key, constant in constants.items()}
    data = graph_to_bytes(network.graph, names)
    if data is None or len(constants) < len(network.graph.constants):
        raise SystemExit(f"{case}: not every weight has a name of its own")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{case}.graph").write_bytes(data)
    held = {f"w/{key}": c.load() for key, c in constants.items() if key not in seeded}
    shapes = {f"s/{key}": np.array(shape) for key, shape in seeded.items() if key in constants}
    arrays = {"x": network.x, "expected": network.expected, "precision": np.array(network.precision)}
    np.savez(folder / f"{case}.npz", **held, **shapes, **arrays)


def read(folder: Path, case: str) -> Network:
    """What `write` has written."""
    from mansard.ir.graph_data import graph_from_bytes

    with np.load(folder / f"{case}.npz") as held:
        weights = {key[2:]: held[key] for key in held.files if key.startswith("w/")}
        shapes = {key[2:]: tuple(map(int, held[key])) for key in held.files if key.startswith("s/")}
        weights |= {key: _random(key, shape) for key, shape in shapes.items()}
        constants = {key: Constant.of(array, key) for key, array in weights.items()}
        graph = graph_from_bytes((folder / f"{case}.graph").read_bytes(), constants)
        return Network(graph, str(held["precision"]), held["x"], held["expected"])


def _random(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return generator.standard_normal(shape, np.float32) * np.float32(_DEVIATION)


def on_three_devices(case: str, runs: int) -> Result:
    """One model on a CPU, the first Vulkan device and the NPU."""
    os.environ["MANSARD_NPU_MODEL"] = "realtime"
    register_npus()
    infos = {info.driver: info for info in reversed(devices()) if info.supported}
    names = [name for name in ("cpu", "vulkan", "npu") if name in infos]
    network = read(Path(os.environ[GRAPHS]), case) if os.environ.get(GRAPHS) else imported(case)[0]
    placement = PlacementOptions(objective="throughput", min_share=MIN_SHARE)
    with compiled(network.graph, names, placement, IN_FLIGHT, network.precision) as model:
        check(model(network.x), [network.expected], TOLERANCES[case])
        late = overruns(model)
        profiles = measure(model, (network.x,), REQUESTS, IN_FLIGHT, runs)
        on = [device for _, device in placed(model.plan)]
        return result_of(
            f"{case}-3",
            profiles,
            profiles[0].bound_ms,
            FROM_PROFILE,
            overrun=overruns(model) - late,
            dispatches={device: on.count(device) for device in names},
            devices={name: infos[name].name for name in names},
            calibrated=model.plan.info.get("calibrated", ""),
        )


def cases() -> Iterator[tuple[str, Callable[[int], list[Result]]]]:
    """Every case by name; called with how many runs to take the shortest of."""
    for case in TOLERANCES:
        yield f"{case}-3", lambda runs, c=case: [on_three_devices(c, runs)]  # type: ignore[misc]


if __name__ == "__main__":
    for case in TOLERANCES:
        write(Path(sys.argv[1]), case)
