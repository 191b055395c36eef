"""Latency and accuracy of the test models on each device, beside PyTorch eager in the same run.

    python -m benchmarks.models.devices [--devices cpu --devices vulkan --devices cpu,vulkan]
        [--models minilm,...]
                                [--runs 20] [--json FILE]

Every configuration is timed in turn with PyTorch (A B A B ...), so that the ratio holds when the
machine's speed drifts. Rows: model, devices, compile_s, median_ms, torch_ms, ratio (Mansard over PyTorch,
below 1 is faster), max_rel_error, dispatches per device, busy_ms per device.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import mansard
from tests.support import zoo


def measure(name: str, devices: tuple[str, ...], runs: int) -> dict[str, Any]:
    model = zoo.MODELS[name]()
    options: dict[str, Any] = {"dynamic_shapes": model.dynamic_shapes} if model.dynamic_shapes else {}
    if len(devices) > 1:
        options["placement"] = mansard.PlacementOptions(min_share=1 / 3)
    begin = time.perf_counter()
    with mansard.compile(model.module, model.args, devices=devices, **options) as ours:
        compile_s = time.perf_counter() - begin
        with torch.no_grad():
            expected = model.module(*model.args)
            outputs = ours(*model.args)
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(runs):
                for kept, call in zip(times, (ours, model.module), strict=True):
                    begin = time.perf_counter()
                    call(*model.args)
                    kept.append((time.perf_counter() - begin) * 1e3)
        profile = ours.profile(*model.args)
        ratios = [a / b for a, b in zip(*times, strict=True)]
        return {
            "model": name,
            "devices": ",".join(devices),
            "compile_s": round(compile_s, 2),
            "median_ms": statistics.median(times[0]),
            "torch_ms": statistics.median(times[1]),
            "ratio": statistics.median(ratios),
            "max_rel_error": float((outputs - expected).abs().max() / expected.abs().max()),
            "dispatches": dict(profile.dispatches),
            "busy_ms": {k: v["busy_ms"] for k, v in profile.devices.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", action="append")
    parser.add_argument("--models", default="minilm,mobilenet,qwen3")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    wanted = [tuple(d.split(",")) for d in options.devices or ["cpu", "vulkan", "cpu,vulkan"]]
    present = {i.id: i.name for i in mansard.devices() if i.supported}
    rows = []
    for name in options.models.split(","):
        for devices in wanted:
            if any(d not in present for d in devices):
                print(f"{name} on {','.join(devices)}: not present here", file=sys.stderr)
                continue
            runs = options.runs if devices == ("cpu",) else max(3, options.runs // 5)
            rows.append(measure(name, devices, runs))
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        machine = {
            "date": time.strftime("%Y-%m-%d"),
            "devices": present,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "command": " ".join(["python -m benchmarks.models.devices", *sys.argv[1:]]),
        }
        options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
