"""Raising as region backends use it: op by op, then patterns of several ops."""

from __future__ import annotations

from mansard.ir.graph import Graph
from mansard.regions.named.editor import Editor
from mansard.regions.patterns.epilogues import fold_biases, fold_clamps
from mansard.regions.patterns.functions import fold_functions
from mansard.regions.patterns.means import fold_means
from mansard.regions.patterns.pads import fold_pads
from mansard.regions.patterns.reductions import reduce_before_views
from mansard.regions.patterns.resizes import fold_resizes
from mansard.regions.patterns.views import merge_views
from mansard.regions.quantised import encode_values
from mansard.regions.quantised.fuse import fuse_encodings
from mansard.regions.raising.ops import Raised, raise_ops


def raise_graph(graph: Graph) -> Raised:
    """A canonical graph, or a region of one (`mansard.ir.region.extract`), as named ops."""
    raised = raise_ops(graph)
    editor = Editor(raised.graph)
    merge_views(editor)
    # Before clamps are folded: those of a rounding are a part of it.
    encode_values(editor)
    editor.sweep()
    reduce_before_views(editor)
    merge_views(editor)
    fold_resizes(editor)
    fold_functions(editor)
    fold_means(editor)
    fold_biases(editor)
    fold_clamps(editor)
    fuse_encodings(editor)
    fold_pads(editor)
    reduce_before_views(editor)
    merge_views(editor)
    return Raised(editor.graph(), raised.reasons)
