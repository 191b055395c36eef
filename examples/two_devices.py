"""One model on two devices, several requests in flight, and how well they overlapped.

python examples/two_devices.py cpu vulkan
"""

from __future__ import annotations

import asyncio
import sys
import time

import torch

import mansard

BRANCHES, WIDTH, REQUESTS = 4, 512, 8


class Branches(torch.nn.Module):
    """Independent branches: something for every device to do at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(BRANCHES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the branches."""
        return torch.stack([torch.relu(branch(x)) for branch in self.branches]).sum(0)


async def main(devices: list[str]) -> None:
    """Compile for the devices, run requests together, report."""
    x = torch.randn(64, WIDTH)
    # Each device gets at least a third of the dispatches, even where one of them would be faster alone.
    share = 1 / 3 if len(devices) > 1 else 0
    placement = mansard.PlacementOptions(min_share=share)
    model = mansard.compile(Branches().eval(), (x,), devices=devices, placement=placement)
    print(model.explain())

    begin = time.perf_counter()
    await asyncio.gather(*(model.run_async(x) for _ in range(REQUESTS)))
    print(f"{REQUESTS} requests in {(time.perf_counter() - begin) * 1e3:.1f} ms")

    profile = model.profile(x)
    for name, figures in profile.devices.items():
        print(f"{name}: {figures['dispatches']} dispatches, busy {figures['busy_ms']:.3f} ms")
    print(f"one request: {profile.latency_ms:.3f} ms, of which {profile.overlap_ms:.3f} ms on both at once")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["cpu"]))
