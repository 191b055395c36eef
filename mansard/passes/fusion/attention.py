"""Fusion of attention into one group: two contractions with a row softmax between them."""

from __future__ import annotations

from collections.abc import Callable

from mansard import dims
from mansard.analysis.attention import AttentionForm, find_attention
from mansard.passes.fusion.groups import Groups


def merge_attention(groups: Groups, accepts: Callable[[AttentionForm], bool]) -> None:
    """Merge the groups of every attention whose scores and probabilities have no other readers."""
    users, live = groups.graph.users(), groups.graph.live_outs()
    for op in groups.graph.ops:
        form = find_attention(op, groups.producers)
        if form is None or not accepts(form):
            continue
        target, inside = groups.group_of[op.outputs[0]], {o for o in form.ops if o is not op}
        parts = {groups.group_of[o.output] for o in inside}
        closed = all(
            o.output not in live and all(u in inside or u is op for u in users[o.output])
            for o in inside - form.read_elsewhere
        )
        if target.kind != "contraction" or not closed or {o for g in parts for o in g.ops} != inside:
            continue
        if any(part.regions != target.regions for part in parts):
            continue
        if target.domain != tuple(d for d in form.weighted.extents[:-1] if not dims.is_one(d)):
            continue  # its consumers split its columns
        target.kind, target.form = "attention", form
        target.ops = [o for g in sorted(parts, key=lambda g: g.first) for o in g.ops] + target.ops
        target.first = min(g.first for g in parts)
        groups.groups = [g for g in groups.groups if g not in parts]
        for o in inside:
            groups.group_of[o.output], groups.level[o.output] = target, "inline"
