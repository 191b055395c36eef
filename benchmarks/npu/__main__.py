"""Networks in int8 on a Hexagon NPU, beside Qualcomm's own run of the whole network as one ONNX model; with
``--device ethos-u`` on an Ethos-U (`benchmarks.npu.ethos_u`).

    make plugins-test PLUGINS=qnn                               # its environment
    build/plugins/qnn/bin/python -m benchmarks.npu [--network mobilenet_v2] [--markdown FILE] [--json FILE]
                                                   [--three-devices FILE]   # see benchmarks.npu.three_devices

A row tells how many regions a network has and the part of its multiply-adds that is in them, what is left
to other devices, how far the answers are from Qualcomm's of the whole model, in steps of the output's 8 bits,
and how far from the float network. On x86 the NPU is Qualcomm's emulator: no time of a run is told.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.npu import ethos_u, three_devices
from benchmarks.npu.networks import NAMES, SMOOTHING

if TYPE_CHECKING:
    from mansard.codegen.kernel_target import KernelTarget
    from mansard.plan.plan import Decision
    from mansard.regions.named import NamedGraph

INPUTS = 2
"""How many inputs of those that a network was calibrated with are compared."""
SHOWN = 3
"""How many dispatches that are left to other devices are named for each reason."""
EMULATOR_SECONDS = 3600.0
"""Time limit of a network's run: that of a whole transformer takes the emulator minutes on a busy machine."""


def measure(name: str, target: str) -> dict[str, Any]:
    """The row of a network."""
    import torch
    from mansard_qnn.compiler import BACKEND
    from mansard_qnn.vendor import options, packages

    import mansard
    from benchmarks.npu.networks import quantised
    from mansard.ir.ops import Assert
    from mansard.regions.onnx import write_onnx
    from mansard.regions.raising import raise_graph

    mansard.configure_driver("qnn", limit=EMULATOR_SECONDS)
    model, module, data = quantised(name)
    graphs = []
    partition = BACKEND.partition
    BACKEND.partition = lambda graph, kernel: graphs.append(graph) or partition(graph, kernel)  # type: ignore
    start = time.perf_counter()
    compiled = mansard.compile(model, devices=[target])
    seconds = time.perf_counter() - start
    raised = raise_graph(graphs[0])
    left = [reason for op, reason in raised.reasons.items() if not isinstance(op, Assert)]
    assert not left, left
    session = packages()[0].InferenceSession(
        write_onnx(raised.graph).data, options(_whole(BACKEND.parse_target(target))), enable_fallback=False
    )
    steps, errors, same = [], [], []
    for (x,) in data[:INPUTS]:
        answer = np.asarray(compiled(x))
        (whole,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            exact = module(x).numpy()
        steps.append(float(np.abs(answer - whole).max() / _step(raised.graph, whole)))
        errors.append(float(np.linalg.norm(answer - exact) / np.linalg.norm(exact)))
        same.append(float((answer.argmax(1) == exact.argmax(1)).mean()))
    decisions = compiled.plan.decisions
    products = {d.dispatch: d.operations - d.other_operations if d.depth else 0 for d in decisions}
    inside = [d for d in decisions if d.device == target]
    return {
        "network": name,
        "regions": len(inside),
        "share": sum(products[d.dispatch] for d in inside) / sum(products.values()),
        "others": _elsewhere(decisions, target),
        "compile_s": seconds,
        "steps": max(steps),
        "error": max(errors),
        "top1": float(np.mean(same)),
        "report": _report(model.report),
    }


def _elsewhere(decisions: Sequence[Decision], target: str) -> dict[str, list[str]]:
    """The dispatches on other devices, by the reason for it."""
    others: dict[str, list[str]] = {}
    for decision in decisions:
        if decision.device != target:
            others.setdefault(str(decision.costs[target]), []).append(decision.dispatch)
    return others


def _whole(target: KernelTarget) -> dict[str, str]:
    """Settings of a session on the whole network: what the NPU refuses runs on the host, but inputs are
    quantised on the NPU, as those of a region."""
    from mansard_qnn.compiler import settings

    return {**settings(target), "offload_graph_io_quantization": "0"}


def _step(graph: NamedGraph, answer: np.ndarray) -> float:
    """What one step of the output's 8 bits stands for; of its range, where it is of floats."""
    last = graph.producers()[graph.outputs[0]]
    encoding = graph.encodings.get(last.inputs[0])
    return float(np.ptp(answer)) / 255 if encoding is None else encoding.scale


def _report(report: Any) -> dict[str, Any]:
    worst = sorted(report.layers, key=lambda layer: -layer.error)[:3]
    return {
        "layers": len(report.layers),
        "median": float(np.median([layer.error for layer in report.layers])),
        "worst": [[layer.name, layer.error] for layer in worst],
        "outputs": report.error,
        "agreement": report.agreement,
    }


def _in_child(name: str, target: str, device: str) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.npu",
        "--device",
        device,
        "--child",
        name,
        "--target",
        target,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"network": name, "failure": (done.stderr.strip().splitlines() or ["it failed"])[-1]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    packages = ("onnxruntime", "onnxruntime-qnn", "torch", "transformers")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    lines = [
        "# Networks in int8 on a Hexagon NPU",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {versions}. On x86 the NPU is Qualcomm's",
        "emulator: answers are Qualcomm's, and times would say nothing.",
        "",
        "    build/plugins/qnn/bin/python -m benchmarks.npu --markdown benchmarks/results/MACHINE/npu.md",
        "",
        '`mansard.quantize(network, inputs, scheme="int8")` of seeded networks whose heads are fitted to',
        "textures (benchmarks/npu/fitted.py); MiniLM is all-MiniLM-L6-v2 on text, `attention=True` and",
        f"`smoothing={SMOOTHING}`. *Steps* is the largest difference from Qualcomm's run of the whole",
        "network as one ONNX model, in steps of the output's 8 bits. *Error* is the relative L2 distance",
        "from the float network: of the answers on the NPU, of those that `mansard.quantize` reports, and",
        "of single layers with all before them quantised (median). *Top-1* is how often the largest answer",
        "is the float network's: of MiniLM the token with the largest number in each dim, which says",
        "little.",
        "",
        "| network | regions | multiply-adds in them | steps | error on the NPU | reported | layers | top-1 "
        "| compiled in s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    notes = []
    for row in rows:
        if "failure" in row:
            lines.append(f"| {row['network']} | {row['failure']} |")
            continue
        report = row["report"]
        cells = [
            row["network"],
            row["regions"],
            f"{100 * row['share']:.2f} %",
            f"{row['steps']:.2f}",
            *(f"{error:.3f}" for error in (row["error"], report["outputs"], report["median"])),
            f"{100 * row['top1']:.0f} %",
            f"{row['compile_s']:.0f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
        left = "; ".join(
            f"{', '.join(names[:SHOWN])}{' …' if len(names) > SHOWN else ''} ({reason})"
            for reason, names in row["others"].items()
        )
        worst = ", ".join(f"{name} {error:.3f}" for name, error in report["worst"])
        notes.append(
            f"- {row['network']}: elsewhere: {left or 'nothing'}. Largest errors of layers: {worst}."
        )
    return "\n".join([*lines, "", *notes, ""])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=NAMES, action="append")
    parser.add_argument("--device", choices=("qnn", "ethos-u"), default="qnn", help="whose NPU")
    parser.add_argument("--target", help="of the device: another than qnn and ethos-u:u85-256")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--three-devices", type=Path, metavar="FILE", help="also a model of three devices")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    ethos = chosen.device == ethos_u.DEVICE
    if chosen.child:
        row = (ethos_u.measure if ethos else measure)(chosen.child, chosen.target)
        print(json.dumps(row))
        return
    if ethos:
        runs = ethos_u.runs(chosen.network, chosen.target)
    else:
        runs = [(name, chosen.target or "qnn") for name in chosen.network or NAMES]
    rows = [_in_child(name, target, chosen.device) for name, target in runs]
    text = (ethos_u.table if ethos else table)(rows)
    if chosen.three_devices:
        text += "\n" + three_devices.section(three_devices.measure(chosen.three_devices))
    print(text)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))
    if chosen.markdown:
        chosen.markdown.write_text(text)


if __name__ == "__main__":
    main()
