"""Attention over a cache as it was and the row that a step writes into it: the same results and states, and
which attentions are left as they are."""

import dataclasses

import numpy as np
import pytest
from support.ir_graphs import BOOL, F32, random

from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Reshape, Scatter
from mansard.ir.scalar import Apply, Arg, Const, Index
from mansard.ir.verify import verify
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.in_place import mark_in_place
from mansard.passes.parallel.split_attention import split_attention
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps

I64 = DType.I64
HEADS, KEY_HEADS, DEPTH = 4, 2, 8
WIDTH = KEY_HEADS * DEPTH


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of decoding."""

    length: int = 600
    window: int | None = None
    softcap: float | None = None
    ring: bool = False
    """Whether positions begin again at 0 behind the last row."""
    rows: int = 1
    stored_mask: bool = False
    returned: bool = False
    """Whether the cache is a result, behind another op."""

    def build(self):
        """The graph in its canonical form."""
        b = GraphBuilder()
        q = b.input("q", (1, HEADS, self.rows, DEPTH), F32)
        new = [b.input(name, (self.rows, WIDTH), F32) for name in ("k", "v")]
        at = b.input("at", (self.rows,), I64)
        place = Arg(0, I64)
        if self.ring:
            place = Apply("rem", (place, Const(self.length, I64)), I64)
        is_first = Apply("eq", (Index(1), Const(0, I64)), BOOL)
        body = Apply("select", (is_first, Const(0, I64), place), I64)
        where = b.generic([at], [IndexMap((Linear.dim(0),))], (self.rows, 2), body)
        caches = [b.state(name, (1, self.length, WIDTH), F32) for name in ("keys", "values")]
        heads = []
        for cache, rows in zip(caches, new, strict=True):
            after = b.scatter(cache, where, rows, unique=True)
            b.update_state(cache, after)
            split = b.reshape(after, (1, self.length, KEY_HEADS, DEPTH))
            order = IndexMap((Linear.dim(0), Linear.dim(2), Linear.dim(1), Linear.dim(3)))
            heads.append(b.generic([split], [order], (1, KEY_HEADS, self.length, DEPTH), Arg(0, F32)))
        end = IndexMap((Linear.dim(2),))
        seen = Apply("le", (Index(3), Arg(0, I64)), BOOL)
        if self.ring:
            seen = Apply("or", (seen, Apply("ge", (Arg(0, I64), Const(self.length, I64)), BOOL)), BOOL)
        if self.window:
            near = Apply("sub", (Arg(0, I64), Const(self.window, I64)), I64)
            seen = Apply("and", (seen, Apply("gt", (Index(3), near), BOOL)), BOOL)
        extents = (1, 1, self.rows, self.length)
        stored = self.stored_mask
        mask = b.input("mask", extents, BOOL) if stored else b.generic([at], [end], extents, seen)
        out = b.attention(q, *heads, mask, 0.3, softcap=self.softcap)
        outputs = [out]
        if self.returned:
            negated = Apply("neg", (Arg(0, F32),), F32)
            outputs.append(b.generic([heads[0]], [IndexMap.identity(4)], heads[0].type.shape, negated))
        return run_passes(b.build(outputs), canonical_steps())

    def inputs(self, position):
        """Those of a step."""
        found = [random((1, HEADS, self.rows, DEPTH), F32, seed=10 + position)]
        found += [random((self.rows, WIDTH), F32, seed=1000 * n + position) for n in (1, 2)]
        found.append(np.arange(position, position + self.rows))
        if self.stored_mask:
            found.append(np.arange(self.length)[None, None, None] <= position)
        return found


def split(graph):
    return eliminate_dead(split_attention(graph, 64, one_launch=True))


def reads_before(graph):
    """Whether something reads the caches as they were."""
    users = graph.users()
    return [any(not isinstance(op, Scatter) for op in users[s.before]) for s in graph.states]


@pytest.mark.parametrize(
    ("step", "positions"),
    [
        (Step(), (0, 1, 2, 40, 599, 600, -1)),
        (Step(length=1024), (0, 31, 32, 1023)),
        (Step(window=3), (0, 1, 2, 3, 4)),
        (Step(softcap=2.0), (0, 1, 5)),
        (Step(length=520, ring=True), (518, 519, 520, 521, 1040)),
    ],
)
def test_the_meaning_stays(step, positions):
    graph = step.build()
    after = split(graph)
    verify(after)
    assert reads_before(after) == [True, True]
    states = [{}, {}]
    if step.ring:
        states = [
            {n: random((1, step.length, WIDTH), F32, seed=7) for n in ("keys", "values")} for _ in states
        ]
    for position in positions:
        both = [
            interpret(g, step.inputs(position), states=s) for g, s in zip((graph, after), states, strict=True)
        ]
        np.testing.assert_allclose(both[1][0], both[0][0], rtol=2e-5, atol=2e-6)
        for name in ("keys", "values"):
            np.testing.assert_array_equal(states[0][name], states[1][name])


@pytest.mark.parametrize(
    "step",
    [
        Step(rows=3),
        Step(stored_mask=True),
        Step(returned=True),
    ],
)
def test_what_reads_the_caches_behind_their_update(step):
    after = split(step.build())
    assert reads_before(after) == [False, False]


def test_only_in_persistent_kernels():
    graph = Step().build()
    assert reads_before(split_attention(graph, 64)) == [False, False]


def test_caches_are_updated_in_place_behind_all_attention():
    graph = mark_in_place(fuse(split(Step().build()), attention=lambda form: form.partial is not None))
    names = [d.name for d in graph.dispatches]
    assert names.index("attention") < min(n for n, d in enumerate(graph.dispatches) if d.in_place)
    updates = [d for d in graph.dispatches if d.in_place]
    assert {v.name for d in updates for v in d.in_place} == {"keys", "values"}
    assert all(d.is_nest for d in updates), "rows are written where they belong by what copies them"
    reshaped = [op for d in updates for op in d.ops if isinstance(op, Reshape)]
    assert all(op.inputs[0].name not in ("keys", "values") for op in reshaped)
