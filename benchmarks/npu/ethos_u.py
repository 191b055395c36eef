"""Networks in int8 on an Arm Ethos-U: Vela's cycles by region and by op, TOSA's reference model beside
Mansard's evaluation of the same programs, and what Vela refuses.

    make plugins-test PLUGINS=ethos-u                           # its environments
    build/plugins/ethos-u/bin/python -m benchmarks.npu --device ethos-u [--network resnet50] [--markdown FILE]

Each region is run by the reference model and by `mansard.regions.tosa.evaluate` on the values that it is
given in the network, and every element compared. No time of a run is told: the reference model is no
simulator of a chip.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

if TYPE_CHECKING:
    from mansard.codegen.kernel_target import KernelTarget
    from mansard.ir.graph import Graph
    from mansard.ir.ops import Op
    from mansard.ir.region import Partition
    from mansard.ir.types import Value
    from mansard.regions.tosa import TosaProgram

DEVICE, TARGET, SMALL = "ethos-u", "ethos-u:u85-256", "ethos-u:u55-256"
NAMES = ("mobilenet_v2", "resnet50", "deeplabv3", "minilm")
WORKER = Path("build/plugins/ethos-u-worker/bin/python")
TOP = 5
"""How many of the ops with the most cycles are listed for a network."""


_ABOUT = """# Networks in int8 on Arm Ethos-U

{day}

    build/plugins/ethos-u/bin/python -m benchmarks.npu --device ethos-u \\
        --markdown benchmarks/results/MACHINE/npu-ethos-u.md

Networks of `benchmarks/npu/networks.py` by `mansard.quantize(network, data, scheme="int8")`, MiniLM with
`attention=True` and `smoothing=0.5`; `deeplabv3_refined` is DeepLabV3 whose logits are resized and go
through one more convolution. *Cycles* are Vela's estimate,
*ms* at the clock of its system configuration: 1 GHz for a U85, 500 MHz for a U55.
*Different* counts elements of the regions' results that TOSA's reference model and
`mansard.regions.tosa.evaluate` compute differently, each region with the inputs that it has in the network.
*Answers* counts those of the compiled network that are not those of this evaluation, with the interpreter of
the Graph for the ops outside of regions, and by which part of the largest answer: sums of floats on the CPU
have an order of their own. *From the CPU* is the relative L2 distance of the answers from those of the same
int8 network on Mansard's CPU, which rounds halves to even where TOSA rounds them up; weights that no one has
trained let such steps spread. *Top-1* is how often the largest answer is the same.
"""
_HEAD = (
    "| network | target | regions | multiply-adds in them | cycles | ms | different | answers "
    "| from the CPU | top-1 | compiled in s |",
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
)


@dataclass(frozen=True)
class Built:
    """A region of a network: its ops in the network's graph, the region as a graph, the program that Vela was
    given, its flatbuffer, and Vela's facts."""

    ops: Collection[Op]
    graph: Graph
    program: TosaProgram
    flatbuffer: bytes
    facts: Mapping[str, Any]


def runs(networks: Sequence[str] | None, target: str | None) -> list[tuple[str, str]]:
    """Networks with their targets; by default all, and one with an op that a U55 refuses."""
    if networks is None and target is None:
        return [
            *((name, TARGET) for name in NAMES),
            ("deeplabv3_refined", TARGET),
            ("deeplabv3_refined", SMALL),
        ]
    return [(name, target or TARGET) for name in networks or NAMES]


def measure(name: str, target: str) -> dict[str, Any]:
    """The row of a network: regions with cycles, compared elements, and what is elsewhere, with reasons."""
    use_worker()
    from mansard_ethos_u.compiler import BACKEND

    import mansard
    from benchmarks.npu import networks, refined

    model, _, data = refined.quantised() if name == refined.NAME else networks.quantised(name)
    seen: list[tuple[Graph, KernelTarget, Partition]] = []
    partition = BACKEND.partition

    def watched(graph: Graph, kernel: KernelTarget) -> Partition:
        seen.append((graph, kernel, partition(graph, kernel)))
        return seen[-1][2]

    with mock.patch.object(BACKEND, "partition", watched):
        start = time.perf_counter()
        compiled = mansard.compile(model, devices=[target])
        seconds = time.perf_counter() - start
    graph, kernel, parts = seen[-1]
    regions = [_built(graph, region.ops, kernel) for region in parts.regions]
    rows = [_row(region) for region in regions]
    (x,) = data[0]
    checked, (answers,) = compared(graph, regions, x.numpy())
    with mansard.compile(model, devices="cpu") as plain:
        theirs, ours = np.asarray(compiled(x)), np.asarray(plain(x))
    decisions = compiled.plan.decisions
    products = {d.dispatch: d.operations - d.other_operations if d.depth else 0 for d in decisions}
    others = [d for d in decisions if d.device != target]
    return {
        "network": name,
        "target": target,
        "compile_s": seconds,
        "share": 1 - sum(products[d.dispatch] for d in others) / sum(products.values()),
        "regions": rows,
        "others": dict(Counter(re.sub(r"%\S+", "%…", reason) for reason in parts.reasons.values())),
        "elements": sum(size for _, size in checked),
        "different": sum(different for different, _ in checked),
        "answers": theirs.size,
        "answers_different": int((theirs != answers.reshape(theirs.shape)).sum()),
        "answers_error": float(np.abs(theirs - answers.reshape(theirs.shape)).max() / np.abs(answers).max()),
        "distance": float(np.linalg.norm(theirs - ours) / np.linalg.norm(ours)),
        "top1": float((theirs.argmax(-1) == ours.argmax(-1)).mean()),
    }


def use_worker() -> None:
    """Let the plug-in find the environment that `tools/plugin_env.sh` has made."""
    if WORKER.exists():
        os.environ.setdefault("MANSARD_ETHOS_U_PYTHON", str(WORKER.absolute()))


def _built(graph: Graph, ops: Collection[Op], kernel: KernelTarget) -> Built:
    from mansard_ethos_u.compiler import BACKEND
    from mansard_ethos_u.files import TOSA, unpack

    from mansard.hal.program import Program
    from mansard.ir.region import extract
    from mansard.regions.raising import raise_graph
    from mansard.regions.tosa import write_tosa

    region = extract(graph, ops, "region")
    files, facts = unpack(Program.decode(BACKEND.compile_region(region, kernel)).code)
    program = write_tosa(replace(raise_graph(region).graph, name="region"))
    return Built(ops, region, program, files[TOSA], facts)


def _row(region: Built) -> dict[str, Any]:
    facts = region.facts
    places = [op.location.text for op in region.graph.ops if op.location.text]
    return {
        "from": places[0] if places else "",
        "cycles": facts["cycles"],
        "ms": 1e3 * facts["cycles"] / facts["clock_hz"],
        "macs": facts["macs"],
        "weights": facts["encoded_weights"],
        "scratch": facts["regions"]["scratch"]["bytes"],
        "ops": facts["ops"],
    }


def compared(
    graph: Graph, regions: list[Built], x: np.ndarray[Any, Any]
) -> tuple[list[tuple[int, int]], list[np.ndarray[Any, Any]]]:
    """For each region, how many elements the reference model and Mansard's evaluation compute differently,
    and how many there are; and the network's answers by Mansard's evaluation.

    Inputs of a region are those that it has in the network for an input x of it; ops outside of regions are
    computed by the interpreter of the Graph.
    """
    from mansard_ethos_u import vendor

    from mansard.ir.interpreter.graph import run_op
    from mansard.regions.tosa.evaluate import evaluate

    values: dict[Value, Any] = {v: np.asarray(c.load()) for v, c in graph.constants.items()}
    values |= dict(zip(graph.inputs, [x], strict=True))
    inside = {op for region in regions for op in region.ops}
    waiting: list[Built | Op] = [*regions, *(op for op in graph.ops if op not in inside)]
    counts: dict[int, tuple[int, int]] = {}
    # Views of what is inside a region never are ready, and nothing waits for them.
    while unit := next((unit for unit in waiting if all(v in values for v in _inputs(unit))), None):
        waiting.remove(unit)
        if not isinstance(unit, Built):
            values.update(zip(unit.outputs, run_op(unit, [values[v] for v in unit.inputs]), strict=True))
            continue
        arrays = [values[v] for v in unit.graph.inputs]
        ours = evaluate(unit.program, arrays)
        given = [np.ascontiguousarray(a).view(np.int8 if a.dtype == np.uint8 else a.dtype) for a in arrays]
        theirs = vendor.compiler().make("load", unit.flatbuffer).call("run", given, [])
        differences = [a.reshape(b.shape) != b for a, b in zip(theirs, ours, strict=True)]
        counts[id(unit)] = (sum(int(d.sum()) for d in differences), sum(d.size for d in differences))
        for value, array in zip(unit.graph.outputs, ours, strict=True):
            values[value] = array.view(value.type.dtype.numpy).reshape(value.type.concrete({}))
    return [counts[id(region)] for region in regions], [values[v] for v in graph.outputs]


def _inputs(unit: Built | Op) -> Collection[Value]:
    return unit.graph.inputs if isinstance(unit, Built) else unit.inputs


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    packages = ("torch", "transformers")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    day = (
        f"{datetime.date.today()}, {platform.machine()}, ethos-u-vela 5.2.0, tosa-tools 2026.8.0, {versions}."
    )
    lines = [_ABOUT.format(day=day), *_HEAD]
    notes: list[str] = []
    for row in rows:
        if "failure" in row:
            lines.append(f"| {row['network']} | {row['failure']} |")
            continue
        regions = row["regions"]
        cells = [
            row["network"],
            row["target"],
            len(regions),
            f"{100 * row['share']:.2f} %",
            f"{sum(r['cycles'] for r in regions):,}",
            f"{sum(r['ms'] for r in regions):.2f}",
            f"{row['different']:,} of {row['elements']:,}",
            _answers(row),
            f"{row['distance']:.4f}",
            f"{100 * row['top1']:.0f} %",
            f"{row['compile_s']:.0f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
        notes += _details(row)
    return "\n".join([*lines, *notes, ""])


def _answers(row: Mapping[str, Any]) -> str:
    different = f"{row['answers_different']:,} of {row['answers']:,}"
    return f"{different}, by {row['answers_error']:.0e} at most" if row["answers_different"] else different


def _details(row: Mapping[str, Any]) -> list[str]:
    """Regions, the ops with the most cycles, and the reasons of what is elsewhere."""
    lines = ["", f"## {row['network']} on {row['target']}", ""]
    lines += [
        "| region from | cycles | multiply-adds | weights in KB | scratch memory in KB |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for region in row["regions"]:
        sizes = (f"{region[key] / 1024:,.0f}" for key in ("weights", "scratch"))
        cells = (region["from"], f"{region['cycles']:,}", f"{region['macs']:,}", *sizes)
        lines.append(f"| {' | '.join(cells)} |")
    ops = [op for region in row["regions"] for op in region["ops"]]
    total = sum(cycles for _, _, cycles, *_ in ops) or 1
    kinds = Counter[str]()
    for _, kind, cycles, *_ in ops:
        kinds[kind] += cycles
    shares = ", ".join(f"{kind} {100 * cycles / total:.0f} %" for kind, cycles in kinds.most_common(TOP))
    lines += ["", f"Cycles by Vela's operators: {shares}. The ops with the most:", ""]
    for _, kind, cycles, macs, label in sorted(ops, key=lambda op: -op[2])[:TOP]:
        lines.append(
            f"- {cycles:,} cycles ({100 * cycles / total:.1f} %): {kind}, {macs:,} multiply-adds, {label}"
        )
    lines += ["", "On the CPU:" if row["others"] else "On the CPU: nothing.", ""]
    lines += [f"- {count} ops: {reason}" for reason, count in row["others"].items()]
    return lines
