"""Chains of reshapes and transposes as one op, or none.

Dims of one element come and go in such chains; what matters is the order of the others.
"""

from __future__ import annotations

from mansard.ir.types import Value
from mansard.regions.named.builder import static
from mansard.regions.named.editor import Editor, sources
from mansard.regions.named.ops import NamedOp, Reshape, Transpose


def merge_views(e: Editor) -> None:
    """Let every view read what the views before it read, where one op says the same as all of them."""
    for op in e.listed():
        if isinstance(op, (Reshape, Transpose)) and op.clamp is None:
            _merge(e, op)
    e.sweep()


def _merge(e: Editor, op: NamedOp) -> None:
    chain = [op]
    while isinstance(before := e.producer(chain[-1].inputs[0]), (Reshape, Transpose)):
        if e.encodings.get(before.output) != e.encodings.get(before.inputs[0]):
            break
        chain.append(before)
    # The longest part of the chain that one op can say.
    for length in range(len(chain), 0, -1):
        merged = _as_one(e, chain[:length])
        if merged is not None:
            e.put(merged)
            if merged.inputs[0].type == op.output.type and isinstance(merged, Reshape):
                e.rename(op.output, merged.inputs[0])
            return


def _as_one(e: Editor, chain: list[NamedOp]) -> NamedOp | None:
    """Views, the last one first, as one Reshape or Transpose."""
    source, result = chain[-1].inputs[0], chain[0].output
    merged = sources(chain)
    if all(isinstance(op, Reshape) for op in chain):
        return Reshape((source,), result, sources=merged)
    order = order_of(source, chain)
    if order is None:
        return None
    if order == sorted(order):
        return Reshape((source,), result, sources=merged)
    shape, wanted = static(source.type.shape), static(result.type.shape)
    if len(shape) != len(wanted):
        return None
    single = iter(d for d, size in enumerate(shape) if size == 1)
    long = iter(order)
    permutation = tuple(next(single) if size == 1 else next(long) for size in wanted)
    return Transpose((source,), result, permutation, sources=merged)


def order_of(source: Value, chain: list[NamedOp]) -> list[int] | None:
    """The dims of a value that have several elements, in the order in which views leave them; None where one
    is divided or merged."""
    labels: list[int | None] = [d if size != 1 else None for d, size in enumerate(static(source.type.shape))]
    for op in reversed(chain):
        if isinstance(op, Transpose):
            labels = [labels[d] for d in op.permutation]
            continue
        given = [size for size in static(op.inputs[0].type.shape) if size != 1]
        wanted = [size for size in static(op.output.type.shape) if size != 1]
        if given != wanted:
            return None
        kept = iter([label for label in labels if label is not None])
        labels = [next(kept) if size != 1 else None for size in static(op.output.type.shape)]
    return [label for label in labels if label is not None]
