"""Loops in pieces: concatenations and padding along the innermost loop."""

import numpy as np
import pytest
from support.graph_runner import check
from support.graphs import F32

from mansard.codegen.loop_nest import Nest
from mansard.codegen.loop_partition import partition_loop
from mansard.ir import GraphBuilder
from mansard.ir.scalar import Gather, walk
from mansard.passes.fusion.fuse import fuse
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps

RNG = np.random.default_rng(2)


def concatenation(widths):
    b = GraphBuilder()
    parts = [b.input(f"x{i}", (3, 4, width), F32) for i, width in enumerate(widths)]
    inputs = [RNG.standard_normal(p.type.shape).astype(np.float32) for p in parts]
    return b.build([b.concat(parts, 2)]), inputs


def test_a_concatenation_of_five_copies_each_part():
    graph, inputs = concatenation((16, 24, 8, 40, 5))
    (dispatch,) = fuse(run_passes(graph, canonical_steps())).dispatches
    pieces = partition_loop(Nest(dispatch), 2)
    assert [(p.lower, p.upper) for p in pieces] == [(0, 16), (16, 40), (40, 48), (48, 88), (88, 93)]
    assert not any(isinstance(n, Gather) for p in pieces for op in p.ops.values() for n in walk(op.body))
    check(graph, inputs, "cpu")


@pytest.mark.parametrize("low", [(0, 0), (1, 3)])
def test_a_padded_copy_reads_rows(low):
    b = GraphBuilder()
    x = b.input("x", (5, 40), F32)
    graph = b.build([b.pad(x, low, (2, 9), 7.0)])
    check(graph, [RNG.standard_normal((5, 40)).astype(np.float32)], "cpu")
