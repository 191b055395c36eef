"""Cases of `overlap.py` on real models: MiniLM with bf16 products and MobileNetV2 in int8 on a CPU, a Vulkan
device and the simulated NPU at once, with requests in flight.

Random weights; answers are compared with PyTorch's. The NPU is the plug-in's ``realtime`` one, slow enough
for a core of the host to compute its functions within their simulated time: commands that were late are
counted as overruns. A software Vulkan device takes the cores of the CPU device: with it the figures show
order and answers, not what three chips would gain.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from overlap_case import Result, check, measure, overruns, placed, register_npus, result_of

REQUESTS, IN_FLIGHT = 12, 4
LEAST_SHARE = 0.1
"""Of the dispatches, for every device, so that none is left out where another is faster at everything."""
TOLERANCES = {"minilm": 0.02, "mobilenet_v2": 0.15}
"""Largest difference as a part of the largest output. Numbers that round to another 8-bit step by a hair
spread through the network: PyTorch's own answer moves as much when the image changes by a millionth."""
FROM_PROFILE = "the commands' own times: the busiest device, or one request's critical path"


def on_three_devices(case: str, runs: int) -> Result:
    """One model on a CPU, the first Vulkan device and the NPU."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded: the NPU is one thread
    os.environ["MANSARD_NPU_MODEL"] = "realtime"
    register_npus()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    import torch
    from three_devices import MODELS

    import mansard

    infos = {info.driver: info for info in reversed(mansard.devices()) if info.supported}
    devices = [name for name in ("cpu", "vulkan", "npu") if name in infos]
    torch.manual_seed(0)
    module, x, precision = MODELS[case]()
    wish = mansard.Placement(objective="throughput", min_share=LEAST_SHARE)
    with mansard.compile(
        module, (x,), devices=devices, placement=wish, precision=precision, max_in_flight=IN_FLIGHT
    ) as model:
        with torch.no_grad():
            expected = module(x).numpy()
        check(model(x).numpy(), [expected], TOLERANCES[case])
        late = overruns(model)
        profiles = measure(model, (x,), REQUESTS, IN_FLIGHT, runs)
        on = [device for _, device in placed(model.plan)]
        return result_of(
            f"{case}-3",
            profiles,
            profiles[0].bound_ms,
            FROM_PROFILE,
            overrun=overruns(model) - late,
            dispatches={device: on.count(device) for device in devices},
            devices={name: infos[name].name for name in devices},
            calibrated=model.plan.info.get("calibrated", ""),
        )


def cases() -> Iterator[tuple[str, Callable[[int], list[Result]]]]:
    """Every case by name; called with how many runs to take the shortest of."""
    for case in TOLERANCES:
        yield f"{case}-3", lambda runs, c=case: [on_three_devices(c, runs)]  # type: ignore[misc]
