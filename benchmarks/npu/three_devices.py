"""CPU, GPU and NPU at once on a chip that is not present: how requests overlap by the chip's figures.

The model is that of plugins/mansard-qnn/examples/three_devices.py, saved.
`mansard.placement.simulate_requests` predicts it, handoffs included; `benchmarks.overlap.clocked` runs its
plan in the runtime on devices that take the chip's times.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHIP = "snapdragon-8-gen-3"
REQUESTS = 16


def measure(file: Path, runs: int = 3) -> dict[str, Any]:
    """The figures of `benchmarks.overlap.clocked.data` for `REQUESTS` requests at once, and the dispatches of
    every device."""
    from benchmarks.overlap.clocked import clocked, data
    from mansard.artifact.resources import read_artifact
    from mansard.targets.socs import load_soc

    plan, resources = read_artifact(file, verify="code")
    soc = load_soc(CHIP)
    row = data(clocked(plan, resources, soc, requests=REQUESTS, in_flight=REQUESTS, runs=runs))
    on = [decision.device for decision in plan.decisions]
    return {**row, "dispatches": {device.name: on.count(device.name) for device in plan.devices}}


def section(row: Mapping[str, Any]) -> str:
    """The figures for people."""
    parts = "; ".join(
        f"{name}: {count} dispatches, busy {100 * row['predicted_busy'][name]:.0f} % "
        f"({100 * row['busy'][name]:.0f} % in the runtime)"
        for name, count in row["dispatches"].items()
    )
    overruns = f", {row['overruns']} overruns of the host" if row["overruns"] else ""
    never = (
        ""
        if row["all_busy_ms"]
        else " Without the chip's handoffs two devices are done before the third has ended its part: "
        "all three never meet."
    )
    rows = (
        ("bound", row["bound_ms"], "", ""),
        ("predicted", row["predicted_ms"], row["predicted_efficiency"], row["predicted_all_busy_ms"]),
        ("in the runtime", row["measured_ms"], row["efficiency"], row["all_busy_ms"]),
        (
            "in the runtime, one device at a time",
            row["lockstep_ms"],
            row["bound_ms"] / row["lockstep_ms"],
            "",
        ),
    )
    cells = [[f"{cell:.2f}" if isinstance(cell, float) else cell for cell in line] for line in rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    return f"""## Three devices at once

    python plugins/mansard-qnn/examples/three_devices.py --save three.mansard
    mansard simulate three.mansard --profile {CHIP} --requests {REQUESTS} --in-flight {REQUESTS}
    python -m benchmarks.overlap.clocked three.mansard --profile {CHIP}

A float stem on the GPU, residual blocks in int8 on the NPU, a float head on the CPU, {row["requests"]}
requests in flight, by the figures of a {row["chip"]}: times of the emulator and of Vulkan in software are
none. *Predicted* has the chip's handoffs, which keep their reader from other work; *in the runtime* the same
plan ran on devices that take the chip's times, {row["slower"]:g} times as long (the figures are in the chip's
time), with the host's own handoffs{overruns}. The bound is the busiest device's work or one
request's critical path.

| | time in ms | overlap efficiency | all three busy in ms |
| --- | ---: | ---: | ---: |
{table}

{parts}.{never}
"""
