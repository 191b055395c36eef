"""Check and time models on a machine that has a device but not the compiler.

``prepare`` compiles models for a target where the compiler is installed and writes a small bundle:
plans, kernels, inputs, PyTorch's outputs, and weights rounded to half precision (the models are
rounded before PyTorch computes the expected outputs, so nothing is lost in comparing). ``run`` needs
the runtime alone: it compares with the expected outputs, times calls, and prints JSON.

    python -m benchmarks.models.remote_check prepare bundle --target vulkan --models minilm,mobilenet,qwen3
    python -m benchmarks.models.remote_check run bundle --devices vulkan --json result.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np


def prepare(folder: Path, targets: list[str], names: list[str]) -> None:
    import torch

    from mansard.compiler import CompileOptions, compile_model
    from mansard.plan.serialise import plan_to_json
    from tests.support import zoo

    builders = {
        "minilm": lambda: zoo.minilm(batch=1, length=128),
        "mobilenet": zoo.mobilenet,
        "qwen3": lambda: zoo.qwen3(layers=1, length=64, vocabulary=2048),
    }
    for name in names:
        model = builders[name]()
        with torch.no_grad():
            for tensor in (*model.module.parameters(), *model.module.buffers()):
                if tensor.is_floating_point():
                    tensor.copy_(tensor.half().float())
            expected = model.module(*model.args).numpy()
        frontend = {"dynamic_shapes": model.dynamic_shapes} if model.dynamic_shapes else {}
        options = CompileOptions(targets=tuple(targets))
        compiled = compile_model(model.module, model.args, options=options, **frontend)
        place = folder / name
        (place / "kernels").mkdir(parents=True, exist_ok=True)
        (place / "plan.json").write_text(plan_to_json(compiled.plan))
        np.savez(
            place / "kernels.npz", **{k: np.frombuffer(v, np.uint8) for k, v in compiled.executables.items()}
        )
        weights = {spec.entry: _shrink(load()) for spec, load in compiled.weights}
        np.savez(place / "weights.npz", **weights)
        np.savez(
            place / "io.npz", expected=expected, **{f"input{i}": a.numpy() for i, a in enumerate(model.args)}
        )


def _shrink(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.float32:
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        if np.array_equal(half.astype(np.float32), array):
            return half
    return array


def run(folder: Path, devices: list[str], runs: int) -> list[dict[str, Any]]:
    from mansard.api import Model
    from mansard.artifact.resources import MemoryResources
    from mansard.hal import registry
    from mansard.plan.serialise import plan_from_json

    rows = []
    for place in sorted(p for p in folder.iterdir() if (p / "plan.json").exists()):
        plan = plan_from_json((place / "plan.json").read_text())
        kernels = {k: v.tobytes() for k, v in np.load(place / "kernels.npz").items()}
        stored = np.load(place / "weights.npz")
        arrays = {w.entry: stored[w.entry].astype(w.dtype.numpy).reshape(w.shape) for w in plan.weights}
        weights = [(w, lambda a=arrays[w.entry]: a) for w in plan.weights]
        io = np.load(place / "io.npz")
        inputs = [io[f"input{i}"] for i in range(len(plan.inputs))]
        begin = time.perf_counter()
        with Model(plan, MemoryResources(kernels, weights), devices or None) as model:
            output = model(*inputs)
            first = time.perf_counter() - begin
            times = []
            for _ in range(runs):
                begin = time.perf_counter()
                output = model(*inputs)
                times.append((time.perf_counter() - begin) * 1e3)
            profile = model.profile(*inputs)
            expected = io["expected"]
            slowest = sorted(profile.rows, key=lambda r: r[2] - r[3])[:8]
            rows.append(
                {
                    "model": place.name,
                    "devices": [
                        f"{s.name}: {registry.open_device(s.name).info.name}" for s in model.bind().slots
                    ],
                    "dispatches": dict(profile.dispatches),
                    "max_rel_error": float(np.abs(output - expected).max() / np.abs(expected).max()),
                    "first_call_s": first,
                    "median_ms": statistics.median(times),
                    "min_ms": min(times),
                    "busy_ms": {k: v["busy_ms"] for k, v in profile.devices.items()},
                    "slowest_us": {label: (end - start) / 1e3 for _, label, start, end, _ in slowest},
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("prepare")
    first.add_argument("folder", type=Path)
    first.add_argument("--target", default="vulkan")
    first.add_argument("--models", default="minilm,mobilenet,qwen3")
    second = commands.add_parser("run")
    second.add_argument("folder", type=Path)
    second.add_argument("--devices", default="")
    second.add_argument("--runs", type=int, default=50)
    second.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.folder, options.target.split(","), options.models.split(","))
        return
    rows = run(options.folder, [d for d in options.devices.split(",") if d], options.runs)
    text = json.dumps(rows, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
