"""What of a model has named ops (`mansard.regions`), and why the rest has none.

    python tools/raising_report.py net.onnx

Prints the share of multiply-adds in raised ops, the regions of a device that takes every named op, the kinds
of named ops, and each reason with the number of ops it holds for.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path

from mansard.frontends import import_model
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import PipelineSettings, graph_steps, pipeline
from mansard.regions.partition import partition_raised
from mansard.regions.raising import raise_graph


def multiply_adds(op: Op) -> int:
    """Of a sum of products; 0 for others, and for one without fixed sizes."""
    if not isinstance(op, Generic) or not is_contraction(op):
        return 0
    return math.prod(extent if isinstance(extent, int) else 0 for extent in op.extents)


def report(graph: Graph) -> str:
    """The report of a graph as a frontend imports it."""
    graph = run_passes(graph, graph_steps(pipeline(PipelineSettings(regions=True))))
    raised = raise_graph(graph)
    total = sum(map(multiply_adds, graph.ops))
    share = sum(multiply_adds(op) for op in graph.ops if op not in raised.reasons) / total if total else 1.0
    regions = partition_raised(graph, raised, lambda op, named: None).regions
    kinds = Counter(op.name for op in raised.graph.ops)
    lines = [
        f"{share:.1%} of {total:,} multiply-adds are in named ops",
        f"regions where all are taken: {len(regions)}",
        "named ops: " + ", ".join(f"{count} {name}" for name, count in kinds.most_common()),
    ]
    reasons = Counter(raised.reasons.values()).most_common()
    lines += [f"not raised: {count} ops, {reason}" for reason, count in reasons]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(import_model(Path(sys.argv[1]))))
