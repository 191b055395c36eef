"""Which weights the methods of a model share, and so keep in one form.

Methods of a model (reading a prompt, generating a token) are graphs of their own, whose passes would each
choose a layout: a product of many rows wants its weights column by column, one of a single row row by row. A
weight that several methods read keeps the order of the checkpoint instead, (outputs, reduced), which every
kernel reads at full speed: it is then stored once, and where nothing else changes it, it is used where it is
mapped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mansard.ir.graph import Graph


def shared_weights(graphs: Iterable[Graph]) -> frozenset[str]:
    """The keys of constants that more than one of the graphs reads."""
    counts = Counter(key for graph in graphs for key in {c.key for c in graph.constants.values() if c.key})
    return frozenset(key for key, count in counts.items() if count > 1)
