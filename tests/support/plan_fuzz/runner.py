"""The process in which plans run that the checks let through: ``python -m support.plan_fuzz.runner SEEDS``.

Reads JSON lines with the number of a seed and the text of a plan; answers each with what became of it. A plan
that ends the process, or that runs too long, is the last one it was given.
"""

from __future__ import annotations

import functools
import json
import resource
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mansard import dims
from mansard.api import Model
from mansard.artifact.container import Container
from mansard.artifact.resources import PLAN_ENTRY, MemoryResources, read_artifact
from mansard.artifact.writing import create
from mansard.dims import Dim
from mansard.errors import MansardError
from mansard.hal.registry import open_device
from mansard.plan.plan import Plan, TensorSpec
from mansard.plan.serialise import executables_of, plan_from_json
from support.plan_fuzz import guards

MEMORY_BYTES = 16 << 30
LARGEST_INPUT = 64 << 20
CALLS = 2


class Runner:
    """Runs plans over the kernels and weights of their seeds."""

    def __init__(self, seeds: Sequence[Path]) -> None:
        self.seeds = seeds
        self.scratch = seeds[0].parent / "signed.mansard"

    @functools.cached_property
    def opened(self):
        """The plan, executables and resources of every seed."""
        seeds = []
        for path in self.seeds:
            plan, resources = read_artifact(path)
            blobs = {ref.entry: bytes(resources.code(ref.entry)) for ref in executables_of(plan)}
            weights = [
                (spec, functools.partial(guards.copy, np.array(resources.load(spec))))
                for spec in plan.weights
            ]
            seeds.append((executables_of(plan), MemoryResources(blobs, weights)))
        return seeds

    def run(self, seed: int, text: str, *, signed: bool) -> str:
        """``ok``, the error that a plan ends in, or a traceback of what should not have been raised."""
        try:
            if signed:
                self._run(*self._signed(seed, text))
            else:
                executables, resources = self.opened[seed]
                self._run(plan_from_json(text, executables), resources)
        except MansardError as error:
            return f"{type(error).__name__}: {error}"[:300]
        except BaseException:
            return f"FOREIGN\n{traceback.format_exc()}"
        return "ok"

    def _signed(self, seed: int, text: str):
        """The plan in a file of its own, with new hashes, read as any file is."""
        container = Container(self.seeds[seed])
        with create(self.scratch) as writer:
            for name in container.names:
                if name not in ("manifest.json", "mansard-artifact"):
                    data = text.encode() if name == PLAN_ENTRY else container.entry(name).tobytes()
                    writer.add(name, [data], len(data))
            writer.finish({"name": "fuzzed", "info": {}})
        return read_artifact(self.scratch)

    def _run(self, plan: Plan, resources) -> None:
        devices = {device.name: open_device(device.driver) for device in plan.devices}
        with Model(plan, resources, devices) as model:
            for number in range(CALLS):
                model(*inputs_for(plan, number))


def inputs_for(plan: Plan, number: int) -> list[np.ndarray]:
    """Inputs of the shapes that the plan asks for, at the ends of the ranges of its dims."""
    sizes = {dim.name: _size(dim, number) for dim in plan.dims}
    return [_input(spec, sizes) for spec in plan.inputs]


def _size(dim: Dim, number: int) -> int:
    first, step = -(-dim.min // dim.multiple) * dim.multiple, dim.multiple
    if number == 0:
        return first
    return max(first, min(dim.max, 64) // step * step)


def _input(spec: TensorSpec, sizes: dict[str, int]) -> np.ndarray:
    shape = tuple(max(0, dims.evaluate(extent, sizes)) for extent in spec.shape)
    dtype = spec.dtype.numpy
    if int(np.prod(shape, dtype=object)) * dtype.itemsize > LARGEST_INPUT:
        raise MansardError("the input is too large to be tried")
    rng = np.random.default_rng(3)
    if spec.dtype.is_float:
        return guards.copy(rng.standard_normal(shape).astype(dtype))
    return guards.copy(rng.integers(0, 2**31 - 1 if spec.dtype.bits > 8 else 2, shape).astype(dtype))


def main() -> None:
    """Answer lines until there are no more."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seeds, guarded = [Path(path) for path in sys.argv[2:]], sys.argv[1] == "guarded"
    answers, sys.stdout = sys.stdout, sys.stderr
    with pytest.MonkeyPatch.context() as patch:
        if guarded:
            guards.install(patch)
        runner = Runner(seeds)
        for line in sys.stdin:
            request = json.loads(line)
            answer = runner.run(request["seed"], request["plan"], signed=request["signed"])
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
