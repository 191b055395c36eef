"""One network on a CPU, a GPU and a Hexagon NPU at once, with 16 requests in flight.

    python plugins/mansard-qnn/examples/three_devices.py --trace trace.json       # for ui.perfetto.dev

Times of an emulator and of Vulkan in software say nothing. By the figures of a Snapdragon 8 Gen 3, as
predicted, and in the runtime with devices that take these times:

    python plugins/mansard-qnn/examples/three_devices.py --save three.mansard
    mansard simulate three.mansard --profile snapdragon-8-gen-3 --requests 16 --in-flight 16
    python -m benchmarks.overlap.clocked three.mansard --profile snapdragon-8-gen-3

Images are prepared by float convolutions on the GPU (any Vulkan 1.3 driver), go through an int8 network on
the NPU (or Qualcomm's emulator) and are told apart by a float head on the CPU, while other requests are
on the other two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mansard
from mansard.cli.trace import trace_document

NPU = "qnn:sm8650"
"""Without +fp16: floats are for the others."""
REQUESTS, PIXELS = 16, 224


class Network(nn.Module):
    """A float stem, an int8 body of residual blocks, a float head."""

    def __init__(self, width: int = 128, blocks: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width // 2, 3, padding=1, stride=2),
            nn.SiLU(),
            nn.Conv2d(width // 2, width, 3, padding=1, stride=2),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1, stride=2),
        )
        self.body = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
            )
            for _ in range(blocks)
        )
        layers = [
            nn.Linear(width, 2048),
            nn.GELU(),
            *(layer for _ in range(2) for layer in (nn.Linear(2048, 2048), nn.GELU())),
            nn.Linear(2048, 10),
        ]
        self.head = nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.stem(images)
        first, *others = self.body
        x = first(x)
        for block in others:
            x = torch.relu(x + block(x))
        return self.head(x.mean((2, 3)))


def compiled(pixels: int) -> tuple[nn.Module, mansard.Model]:
    """The float network, and its model for the three devices."""
    torch.manual_seed(0)
    module = Network().eval()
    data = [(image,) for image in torch.randn(4, 3, pixels, pixels).split(1)]
    quantised = mansard.quantize(module, data, scheme="int8", keep=("stem*", "head*"))
    pins = (("*stem*", "vulkan"), ("*body*", NPU), ("*head*", "cpu"))
    placement = mansard.PlacementOptions(pins=pins)
    devices = [NPU, "vulkan", "cpu"]
    return module, mansard.compile(quantised, devices=devices, placement=placement, max_in_flight=REQUESTS)


async def answers(model: mansard.Model, images: list[torch.Tensor]) -> list[Any]:
    """All requests at once."""
    return await asyncio.gather(*(model.run_async(image) for image in images))


def run(requests: int = REQUESTS, pixels: int = PIXELS) -> dict[str, Any]:
    """What happened, with the trace."""
    images = list(
        torch.randn(requests, 3, pixels, pixels, generator=torch.Generator().manual_seed(1)).split(1)
    )
    module, model = compiled(pixels)
    alone = [torch.as_tensor(model(image)) for image in images]
    together = [torch.as_tensor(answer) for answer in asyncio.run(answers(model, images))]
    with torch.no_grad():
        exact = [module(image) for image in images]
    profile = model.profile(images[0], requests=requests, in_flight=requests)
    return {
        "dispatches": dict(model.explain().totals),
        "same": all(torch.equal(one, other) for one, other in zip(alone, together, strict=True)),
        "error": max((a - b).abs().max().item() for a, b in zip(together, exact, strict=True)),
        "busy_ms": {name: figures["busy_ms"] for name, figures in profile.devices.items()},
        "all_busy_ms": profile.all_busy_ms,
        "efficiency": profile.efficiency,
        "trace": trace_document(profile.rows, {}, "network", profile.all_busy),
    }


def main() -> None:
    """Run, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--trace", type=Path, metavar="FILE")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="write the model, for mansard simulate, and run nothing"
    )
    options = parser.parse_args()
    if options.save is not None:
        compiled(PIXELS)[1].save(options.save)
        return
    report = run(options.requests)
    for name, count in report["dispatches"].items():
        print(f"{name}: {count} dispatches, busy {report['busy_ms'][name]:.1f} ms")
    print(f"answers of {options.requests} requests at once are those of one at a time: {report['same']}")
    print(f"largest difference from the float network: {report['error']:.4f}")
    print(f"all three busy at the same moment: {report['all_busy_ms']:.1f} ms")
    if options.trace is not None:
        options.trace.write_text(json.dumps(report["trace"]))


if __name__ == "__main__":
    main()
