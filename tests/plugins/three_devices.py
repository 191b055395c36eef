"""A quantised network on a CPU, a Vulkan device and the simulated NPU; prints what happened as JSON.

Run by test_three_devices.py in a process that has the plug-in. The argument is the number of requests.
"""

from __future__ import annotations

import json
import sys

import torch
from quantise import quantise
from torch import nn

import mansard
from mansard.cli.html.report import page
from mansard.cli.trace import trace_document

PINS = (
    ("contraction", "npu"),
    ("contraction_1", "vulkan"),
    ("contraction_2", "npu"),
    ("*", "cpu"),
)
PROFILES = 8


def network() -> nn.Module:
    """Convolutions of three kinds, a mean and a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU6(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.ReLU6(),
        nn.Conv2d(8, 16, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.Softmax(-1),
    )


def overlap(rows: list[tuple[str, int, int]], one: str, other: str) -> bool:
    """Whether commands of two devices ran at the same moment."""
    return any(a[1] < b[2] and b[1] < a[2] for a in rows if a[0] == one for b in rows if b[0] == other)


def main(requests: int) -> None:
    torch.manual_seed(0)
    images = torch.randn(4, 3, 24, 24)
    module = quantise(network(), [images])
    placement = mansard.PlacementOptions(pins=PINS)
    model = mansard.compile(module, (images[:1],), devices=["npu", "vulkan", "cpu"], placement=placement)
    with torch.no_grad():
        expected = [module(image) for image in images.split(1)]
    error = max(
        (model(image) - right).abs().max().item()
        for image, right in zip(images.split(1), expected, strict=True)
    )
    # When requests follow each other is up to the machine's load: seen once in a few profiles is seen.
    for _ in range(PROFILES):
        profile = model.profile(images[:1], requests=requests, in_flight=4)
        rows = [(row.slot, row.start_ns, row.end_ns) for row in profile.rows]
        if overlap(rows, "npu", "cpu") and overlap(rows, "npu", "vulkan"):
            break
    trace = trace_document(profile.rows, {}, "network", profile.all_busy)
    report = {
        "error": error,
        "dispatches": dict(model.explain().totals),
        "reasons": [str(cost) for row in model.plan.decisions for cost in row.costs.values()],
        "types": [row.dtype for row in model.plan.decisions if "contraction" in row.ops],
        "npu with cpu": overlap(rows, "npu", "cpu"),
        "npu with vulkan": overlap(rows, "npu", "vulkan"),
        "tracks": [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"],
        "page": len(page(model.plan, profile.timeline())),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]))
