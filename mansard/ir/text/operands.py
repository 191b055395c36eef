"""The operands of a scalar body in text: which are listed, and which one a read means."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.ir.scalar import Arg, Gather, Scalar, walk
from mansard.ir.types import IndexMap, Value

Operand = tuple[Value, IndexMap | None]
"""An operand and how a body reads it; no map where it is gathered from only."""


def operand_order(body: Scalar) -> list[int]:
    """Operands in order of their first use in ``body``."""
    used = (n.index if isinstance(n, Arg) else n.operand for n in walk(body) if isinstance(n, (Arg, Gather)))
    return list(dict.fromkeys(used))


def gathered_operand(operands: Sequence[Operand], value: Value) -> int | None:
    """The one of the listed operands that a gather from ``value`` means, None where that is not clear."""
    places = [i for i, (v, _) in enumerate(operands) if v is value]
    places = [i for i in places if operands[i][1] is None] or places
    return places[0] if len(places) == 1 else None
