"""An evaluator that takes some reads from vectors that a schedule has loaded in advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import KValue
from mansard.codegen.loop_nest import Read
from mansard.codegen.schedules.common.base import Frame
from mansard.codegen.schedules.common.transpose import transpose
from mansard.ir.types import Linear, Value

Staged = Mapping[tuple[Value, Linear | None], KValue]


class StagedEvaluator(Evaluator):
    """An `Evaluator` that does not repeat the reads in ``staged``."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame.nest, frame.b, frame.params)
        self.staged: Staged = {}

    def load(self, value: Value, address: Linear) -> KValue:
        """As `Evaluator.load`, but staged reads take their vector."""
        staged = self.staged.get((value, address))
        return staged if staged is not None else super().load(value, address)

    def turned(
        self, read: Read, along: Sequence[int], at: KValue, walked: Sequence[int], first: KValue, lanes: int
    ) -> list[KValue]:
        """A read that is contiguous along one loop, transposed in registers to vectors along another. Element
        ``k`` is the vector along the loop ``walked`` from ``first`` on, for the loop ``along`` at ``at + k``.
        """
        assert read.address is not None
        rows = []
        for i in range(lanes):
            with self.scope():
                self.bind(walked, self.b.add(first, self.b.idx(i)))
                self.bind(along, at)
                self.vector = (along[-1], lanes)
                rows.append(self.load(read.value, read.address))
        return transpose(self.b, rows)
