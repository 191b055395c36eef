"""Experts in two parts, each with weights of its own, so that two devices can compute at the same time.

The router is that of the whole layer. A table gives each expert its place in a part, or -1: pairs of a row
and an expert of the other part count as zero, and what the parts give is added up::

    chosen (rows, k)          5  0  7           part "apart" = 0, 5          the others = 1, 2, 3, 4, 6, 7
    place in the part                           1  0 -1                      -1 -1  5

Of few rows, kernels skip what counts as zero, so that no weight is read for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.dtypes import DType
from mansard.frontends.decoders.architecture import Experts
from mansard.frontends.decoders.layers.chosen_products import product_of_chosen
from mansard.frontends.decoders.layers.expert_groups import APART, OTHERS, ExpertGroups
from mansard.frontends.decoders.layers.feed_forward import gated_halves
from mansard.frontends.decoders.layers.writer import Matrix, Writer, add, cast, mul
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Value

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL


class ExpertParts:
    """The experts of a layer at ``place`` in two parts; ``layer.apart`` are those of the first."""

    def __init__(self, writer: Writer, layer: Experts, place: str) -> None:
        self.writer, self.builder, self.layer, self.place = writer, writer.builder, layer, place

    def write(self, x: Value, chosen: Value, weights: Value, by_row: bool) -> Value:
        """What the experts ``chosen`` (rows, k) of x (rows, hidden) give, weighted; ``by_row`` says that each
        row reads the weights of its experts, else rows are grouped by expert."""
        apart = self.layer.apart
        others = [n for n in range(self.layer.count) if n not in apart]
        results = [
            self._part(name, members, x, chosen, weights, by_row)
            for name, members in ((APART, apart), (OTHERS, others))
        ]
        self.writer.at(self.place)
        total = self.writer.map(results, add, "experts")
        return self.writer.cast(total, self.writer.dtype)

    def _part(
        self, name: str, members: Sequence[int], x: Value, chosen: Value, weights: Value, by_row: bool
    ) -> Value:
        """The sum over the experts of a part, f32 (rows, hidden)."""
        hidden, layer, stack = x.type.shape[1], self.layer, f"{self.place}.experts"
        assert isinstance(hidden, int)
        self.writer.at(f"{stack}.{name}")
        place_of = {expert: place for place, expert in enumerate(members)}
        table = self.writer.table(f"{stack}.{name}", [place_of.get(n, -1) for n in range(layer.count)])
        places = self.builder.generic(
            (chosen, table),
            (IndexMap.identity(2), None),
            chosen.type.shape,
            Gather(1, (Arg(0, I64),), I64),
            name="places",
        )
        up = self.writer.rows(f"{stack}.gate_up_proj", (layer.count, 2 * layer.width, hidden), members, name)
        down = self.writer.rows(f"{stack}.down_proj", (layer.count, hidden, layer.width), members, name)
        if by_row:
            return self._by_row(x, places, weights, up, down)
        groups = ExpertGroups(
            self.writer, places, len(members), 2 * layer.width * hidden, part=name, partial=True
        )
        both = groups.product(groups.gathered(x), up, "gate_up")
        result = groups.product(gated_halves(self.writer, both, layer.activation), down, "down")
        return self._combined(groups.slots, result, weights)

    def _by_row(self, x: Value, places: Value, weights: Value, up: Matrix, down: Matrix) -> Value:
        rows, hidden = x.type.shape
        layer, writer = self.layer, self.writer
        chosen = places, (0, 1)
        wide, narrow = (rows, layer.chosen, 2 * layer.width), (rows, layer.chosen, hidden)
        both = product_of_chosen(writer, (x, (0,)), chosen, up, wide, 2, partial=True, name="gate_up")
        gated = gated_halves(writer, writer.cast(both, writer.dtype), layer.activation)
        result = product_of_chosen(
            writer, (gated, (0, 1)), chosen, down, narrow, 2, partial=True, name="down"
        )
        return self.builder.generic(
            (result, weights),
            (IndexMap.of_dims((0, 2, 1)), IndexMap.of_dims((0, 2))),
            (rows, hidden, layer.chosen),
            mul(Arg(0, F32), Arg(1, F32)),
            reduced=1,
            combiner="add",
            name="weighted",
        )

    def _combined(self, slots: Value, result: Value, weights: Value) -> Value:
        """The weighted sum of what the experts of each row gave; ``result`` is (slots, hidden), and slot -1
        that of no expert of this part."""
        rows, chosen = weights.type.shape
        hidden = result.type.shape[1]
        slot = Arg(0, I64)
        row = Gather(2, (Apply("max", (slot, Const(0, I64)), I64), Index(1)), result.type.dtype)
        share = Apply("select", (_is_here(slot), mul(Arg(1, F32), cast(row, F32)), Const(0.0, F32)), F32)
        return self.builder.generic(
            (self.builder.reshape(slots, (rows, chosen)), weights, result),
            (IndexMap.of_dims((0, 2)), IndexMap.of_dims((0, 2)), None),
            (rows, hidden, chosen),
            share,
            reduced=1,
            combiner="add",
            name="combined",
        )


def _is_here(place: Scalar) -> Scalar:
    return Apply("ge", (place, Const(0, I64)), BOOL)
