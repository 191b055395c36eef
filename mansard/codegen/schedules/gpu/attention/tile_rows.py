"""What attention kernels without cooperative matrices have in common on GPUs: the rows of a tile, reads of
their operands as vectors, and stores."""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.loop_nest import Root
from mansard.codegen.schedules.common.attention_nest import AttentionLoops, AttentionNest, Group
from mansard.codegen.schedules.common.base import Frame, divides
from mansard.codegen.schedules.common.key_bounds import key_end
from mansard.codegen.schedules.common.online_softmax import store_results
from mansard.codegen.schedules.gpu.attention.work_split import VECTOR
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.scalar import Scalar


class TileRows:
    """A tile of ``count`` rows along the loops ``groups``; ``first`` is its first row."""

    first: KValue

    def __init__(
        self, frame: Frame, nest: AttentionNest, loops: AttentionLoops, groups: Sequence[Group], count: int
    ) -> None:
        self.frame, self.nest, self.loops, self.groups, self.count = frame, nest, loops, list(groups), count
        self.b, self.ev, self.form = frame.b, frame.ev, nest.form
        self.extent: DimLike = nest.total([d for g in groups for d in g])
        self.depth, self.columns = nest.depth_and_columns()

    def bind_row(self, row: KValue) -> None:
        """Bind the tile's row number ``row``, clamped to the last one."""
        if not self.groups:
            return
        place = self.b.add(self.first, row)
        if not divides(self.extent, self.count):
            place = self.frame.minimum(place, self.ev.dim(dims.add(self.extent, -1)))
        self.frame.bind_flat(self.groups, place)

    def key_end(self) -> KValue:
        """The key after the last one that any row of the tile reads."""
        b, lane = self.b, self.loops.lane
        last = b.idx(0)
        if lane is not None:
            last = self.ev.dim(dims.add(self.nest.total(lane), -1))
            if self.groups == [lane]:
                last = self.frame.minimum(b.add(self.first, b.idx(self.count - 1)), last)
        return key_end(self.frame, self.nest, lane, last)

    def vector(self, root: Root, factor: Scalar, group: Group | None, extent: int, vector: KValue) -> KValue:
        """Four elements along a group of loops, with zeros beyond its extent."""
        b, ev = self.b, self.ev
        start = b.mul(vector, b.idx(VECTOR))
        if group is not None and extent % VECTOR == 0:
            ev.bind(group, start)
            ev.vector, ev.multiple = (group[-1], VECTOR), VECTOR
            return b.splat(ev.part(root, factor), VECTOR)
        whole, zero = b.const(0.0, DType.F32, VECTOR), b.const(0.0, DType.F32)
        for lane in range(min(VECTOR, extent)):
            place = b.add(start, b.idx(lane))
            with ev.scope():
                if group is not None:
                    ev.bind(group, self.frame.minimum(place, b.idx(extent - 1)))
                value = ev.part(root, factor)
            value = b.select(b.compare("lt", place, b.idx(extent)), value, zero)
            whole = b.insert(whole, value, lane)
        return whole

    def store_row(self, row: KValue, vector: KValue, value: KValue, inside: KValue | None) -> None:
        """Store a vector of a row's results after the epilogue, if both are in range."""
        b, ev, column = self.b, self.ev, self.loops.column
        if not divides(self.extent, self.count):
            there = b.compare("lt", b.add(self.first, row), ev.dim(self.extent))
            inside = there if inside is None else b.binary("and", inside, there)
        start = b.mul(vector, b.idx(VECTOR))
        with b.if_(inside if inside is not None else b.const(True, DType.BOOL)), ev.scope():
            self.bind_row(row)
            if column is not None and self.columns % VECTOR == 0:
                ev.bind(column, start)
                ev.vector, ev.multiple = (column[-1], VECTOR), VECTOR
                store_results(self.frame, self.nest, value)
                return
            for lane in range(min(VECTOR, self.columns)):
                place = b.add(start, b.idx(lane))
                with b.if_(b.compare("lt", place, b.idx(self.columns))), ev.scope():
                    if column is not None:
                        ev.bind(column, place)
                    store_results(self.frame, self.nest, b.extract(value, lane))

    def store_statistics(self, row: KValue, top: KValue, total: KValue) -> None:
        """Store the maximum and the sum of a row where the form has them as results."""
        ev, form = self.ev, self.form
        if form.partial is None:
            return
        (top_op, _), _ = form.partial
        self.bind_row(row)
        for root in self.nest.statistics:
            value = top if root.op is top_op else total
            ev.store(root.op.output, self.nest.store_address(root), value)
