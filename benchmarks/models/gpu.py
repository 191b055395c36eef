"""Models on a GPU: Mansard through Vulkan beside torch.compile on the same GPU, in one run.

A machine with a GPU may lack the PyTorch frontend's compiler. So ``prepare`` imports the networks where
the frontend is installed and writes their graphs, without weights; ``run`` needs PyTorch and Mansard's own
code only. It makes the networks with the same seed, compiles the graphs for the device at hand with their
weights, compares with PyTorch eager on the GPU (float32, TF32 off) and times both.

    python -m benchmarks.models.gpu prepare graphs --models mobilenet_v2,minilm,resnet50 --batches 1,32
    python -m benchmarks.models.gpu run graphs --json FILE --markdown FILE

Two times for each, in milliseconds: ``call`` from host array to host array, copies included, and ``device``
with inputs and outputs left in the GPU's memory: for PyTorch the time between events around a replayed
graph, for Mansard what the device's own clock says of a recorded run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("mobilenet_v2", "minilm", "resnet50")


def _batched(name: str, work: Path, batch: int) -> np.ndarray:
    """The benchmark's input with ``batch`` different rows."""
    x = np.load(work / name / "x.npy")
    if batch == 1:
        return x
    generator = np.random.default_rng(2)
    if x.dtype.kind in "iu":
        return generator.integers(0, x.max() + 1, (batch, *x.shape[1:]), x.dtype)
    rows = x + generator.standard_normal((batch, *x.shape[1:])).astype(x.dtype) * x.std() * 0.1
    return rows.astype(x.dtype)


def _module(name: str, work: Path) -> Any:
    from benchmarks.harness import networks
    from benchmarks.harness.cases import CASES

    return networks.entry(CASES[name], work)


def prepare(folder: Path, names: list[str], batch_sizes: list[int]) -> None:
    """Write ``NAME-BATCH.graph``: the imported graph, its weights told by their names in the state dict."""
    import torch

    from benchmarks.harness import networks
    from mansard.frontends import import_model
    from mansard.ir.graph_data import graph_to_bytes

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        module = networks.Forward(networks.network(name)).eval()
        known = module.state_dict()
        for batch in batch_sizes:
            generator = torch.Generator().manual_seed(1)
            row = networks._example(name, generator)[:1]
            graph = import_model(module, (row.expand(batch, *row.shape[1:]).contiguous(),))
            named = {c: c.key for c in graph.constants.values() if c.key in known}
            data = graph_to_bytes(graph, named)
            if data is None:
                raise SystemExit(f"{name}: too much data without a name in the state dict")
            (folder / f"{name}-{batch}.graph").write_bytes(data)


def _best(call: Callable[[], object], seconds: float = 1.5, min_runs: int = 20) -> tuple[float, float]:
    """Median and minimum, in milliseconds, of calls for some seconds, after half a second that does not
    count: a GPU that has idled takes that long to raise its clock."""
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < min_runs or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times), min(times)


def _torch_row(name: str, batch: int, work: Path, *, compiling: bool) -> dict[str, Any]:
    """PyTorch on the GPU, compiled or as it is; what it computes as it is becomes the reference."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    x = torch.from_numpy(_batched(name, work, batch)).cuda()
    module = _module(name, work).cuda()
    with torch.inference_mode():
        reference = module(x).float().cpu().numpy()
        np.save(work / f"{name}-{batch}-reference.npy", reference)
        compiled = torch.compile(module, mode="reduce-overhead") if compiling else module
        for _ in range(4):
            output = compiled(x)
        torch.cuda.synchronize()
        error = float(np.abs(output.float().cpu().numpy() - reference).max() / np.abs(reference).max())
        _my_turn()

        def resident() -> None:
            compiled(x)
            torch.cuda.synchronize()

        host = x.cpu()

        def copied() -> None:
            compiled(host.cuda()).cpu()

        call, call_min = _best(copied)
        latency, latency_min = _best(resident)
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        device = []
        for _ in range(50):
            start.record()
            compiled(x)
            stop.record()
            stop.synchronize()
            device.append(start.elapsed_time(stop))
    return {
        "peer": "torch.compile" if compiling else "eager", "call_ms": call, "call_min_ms": call_min,
        "resident_ms": latency,
        "resident_min_ms": latency_min, "device_ms": statistics.median(device), "max_rel_err": error,
        "device": torch.cuda.get_device_name(), "version": torch.__version__,
    }  # fmt: skip


def _mansard_row(
    name: str, batch: int, work: Path, graphs: Path, target: str, slowest: int
) -> dict[str, Any]:
    from mansard.api import Model
    from mansard.artifact.resources import MemoryResources
    from mansard.compiler import CompileOptions, compile_graph
    from mansard.frontends.pytorch.weights import constant_of
    from mansard.hal import registry
    from mansard.ir.graph_data import graph_from_bytes
    from mansard.placement import PlacementOptions

    weights = _module(name, work).state_dict()
    constants = {key: constant_of(tensor, key) for key, tensor in weights.items()}
    graph = graph_from_bytes((graphs / f"{name}-{batch}.graph").read_bytes(), constants)
    begin = time.perf_counter()
    compiled = compile_graph(
        graph, CompileOptions(targets=(target,), placement=PlacementOptions(fallback="error"))
    )
    seconds = time.perf_counter() - begin
    x = _batched(name, work, batch)
    with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
        output = model(x)
        _my_turn()
        reference = np.load(work / f"{name}-{batch}-reference.npy")
        error = float(np.abs(output - reference).max() / np.abs(reference).max())
        call, call_min = _best(lambda: model(x))
        profiles = [model.profile(x) for _ in range(5)]
        profile = min(profiles, key=lambda p: next(iter(p.devices.values()))["busy_ms"])
        rows = sorted(profile.rows, key=lambda r: r[2] - r[3])
        spans = [max(r[3] for r in p.rows) - min(r[2] for r in p.rows) for p in profiles]
        return {
            "peer": "mansard", "call_ms": call, "call_min_ms": call_min, "max_rel_err": error,
            "device_ms": min(spans) / 1e6,
            "busy_ms": next(iter(profile.devices.values()))["busy_ms"],
            "dispatches": sum(profile.dispatches.values()), "compile_s": seconds,
            "device": registry.open_device(target).info.name,
            "slowest_us": [(r.label, round((r.end_ns - r.start_ns) / 1e3, 2)) for r in rows[:slowest]],
        }  # fmt: skip


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every case in a process of its own. All get ready at once; then one after another measures, alone."""
    from benchmarks.harness import networks

    options.work.mkdir(parents=True, exist_ok=True)
    names, batch_sizes = options.models.split(","), [int(b) for b in options.batches.split(",")]
    for name in names:
        if not (options.work / name / "float32.pt").exists():
            networks.prepare(name, options.work)
    rows = []
    cases = [
        (name, batch, peer) for name in names for batch in batch_sizes for peer in options.peers.split(",")
    ]
    started = [(case, _start(options, case)) for case in cases]
    for _, process in started:
        _line(process)
    for (name, batch, peer), process in started:
        with contextlib.suppress(BrokenPipeError):  # It has failed: its log says why.
            print("go", file=process.stdin, flush=True)
        line = _line(process)
        row = json.loads(line) if line.startswith("{") else {"peer": peer, "error": _errors(options, process)}
        process.wait()
        rows.append({"model": name, "batch": batch, **row})
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "slowest_us"}), flush=True)
    return rows


def _start(options: argparse.Namespace, case: tuple[str, int, str]) -> subprocess.Popen[str]:
    text = ",".join(map(str, case))
    command = [sys.executable, "-m", __spec__.name, "case", str(options.graphs), "--case", text]
    command += ["--work", str(options.work), "--target", options.target, "--slowest", str(options.slowest)]
    with (options.work / f"{text}.log").open("w") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    """The next line that is for us: READY, a row, or nothing when the process has ended."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(("READY", "{")):
            return line
    return ""


def _errors(options: argparse.Namespace, process: subprocess.Popen[str]) -> str:
    text = process.args[process.args.index("--case") + 1]  # type: ignore[union-attr,index]
    return (options.work / f"{text}.log").read_text()[-2000:]


def _my_turn() -> None:
    """Say that all is compiled and warm, and wait until no other process measures."""
    print("READY", flush=True)
    sys.stdin.readline()


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one line per model and batch, Mansard's times beside and over torch.compile's."""
    lines = [
        "| model | batch | Mansard device ms | torch.compile device ms | ratio | Mansard call ms "
        "| torch.compile call ms | ratio | error | dispatches |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for ours in (r for r in rows if r["peer"] == "mansard" and "error" not in r):
        other = [r for r in rows if r["peer"] != "mansard" and "error" not in r]
        peer = next((r for r in other if (r["model"], r["batch"]) == (ours["model"], ours["batch"])), None)
        cells = [ours["model"], str(ours["batch"])]
        for key in ("device_ms", "call_ms"):
            cells.append(f"{ours[key]:.3f}")
            cells += [f"{peer[key]:.3f}", f"{ours[key] / peer[key]:.2f}"] if peer else ["", ""]
        cells += [f"{ours['max_rel_err']:.1e}", str(ours["dispatches"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("prepare", "run", "case"))
    parser.add_argument("graphs", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1")
    parser.add_argument("--peers", default="torch,mansard", help="torch (compiled) or eager, then mansard")
    parser.add_argument("--target", default="vulkan")
    parser.add_argument("--work", type=Path, default=Path("/tmp/mansard-gpu"))
    parser.add_argument("--slowest", type=int, default=12)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--case", default="")
    options = parser.parse_args()
    if options.step == "prepare":
        prepare(options.graphs, options.models.split(","), [int(b) for b in options.batches.split(",")])
        return
    if options.step == "case":
        name, batch, peer = options.case.split(",")
        if peer in ("torch", "eager"):
            row = _torch_row(name, int(batch), options.work, compiling=peer == "torch")
        else:
            row = _mansard_row(
                name, int(batch), options.work, options.graphs, options.target, options.slowest
            )
        print(json.dumps(row))
        return
    rows = run(options)
    if options.json:
        stamp = time.strftime("%Y-%m-%d", time.gmtime())
        record = {"date": stamp, "python": platform.python_version(), "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
