"""Generic: elements by a scalar body over an iteration space, reduced or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.body_rules import check_body
from mansard.ir.combiners import ARG_COMBINERS, COMBINERS, accepts
from mansard.ir.interpreter.scalar import Array
from mansard.ir.op_check import OpCheck
from mansard.ir.ops.base import Op
from mansard.ir.ops.registry import register_op
from mansard.ir.scalar import Apply, Cast, Scalar, walk
from mansard.ir.scalar_ops import scalar_op
from mansard.ir.text.body_parser import read_body
from mansard.ir.text.body_printer import body_text
from mansard.ir.text.scanner import Scanner
from mansard.ir.types import IndexMap, Value


@register_op
@dataclass(frozen=True, eq=False)
class Generic(Op):
    """Compute every element of one result by a scalar body over an iteration space.

    ``extents`` are the iteration dims: first the result's dims in order (so the result's shape is
    ``extents[:rank]``), then the reduced dims. ``maps[i]`` says which element of ``inputs[i]`` an
    iteration point reads; None for operands only read by `Gather`. With reduced dims the elements
    are combined by ``combiner`` starting from its neutral element: ``argmin`` and ``argmax`` (one
    reduced dim) give the first i64 index of the extreme (NaN counts as extreme). The body's dtype
    is the accumulator's; the result's dtype is the same (i64 for arg combiners).

    ``extents=(M, N, K), maps=((d0, d2), (d2, d1)), body=a*b, combiner=add`` is a matmul.
    """

    extents: tuple[DimLike, ...]
    maps: tuple[IndexMap | None, ...]
    body: Scalar
    combiner: str | None = None

    @property
    def rank(self) -> int:
        """Rank of the result: the number of parallel dims."""
        return self.output.type.rank

    @property
    def reduced(self) -> tuple[int, ...]:
        """Iteration dims that are reduced."""
        return tuple(range(self.rank, len(self.extents)))

    @property
    def is_contraction(self) -> bool:
        """A sum of products in which some operand is reused over a parallel dim (matmul, convolution)."""
        if self.combiner != "add" or len(self.inputs) < 2:
            return False
        parallel = {d for d in range(self.rank) if self.extents[d] != 1}
        for index_map in self.maps:
            if index_map is None or not index_map.results:
                continue
            used = {d for r in index_map.results for d, _ in r.terms}
            # Operands that ignore the reduced dims are coefficients of the whole sum, not factors.
            if used & set(self.reduced) and not parallel <= used:
                return True
        return False

    # Rules --------------------------------------------------------------------------------------
    def verify(self, check: OpCheck) -> None:
        """Maps inside their operands, a well-typed body, a combiner exactly where dims are reduced."""
        if len(self.maps) != len(self.inputs):
            raise check.fail(f"has {len(self.maps)} index maps for {len(self.inputs)} operands")
        check.counts((len(self.inputs),), 1)
        for d in self.extents:
            check.known(d, "an extent")
        for value, index_map in zip(self.inputs, self.maps, strict=True):
            if index_map is not None:
                self._verify_map(check, value, index_map)
        check_body(check, self.body, self.maps, len(self.extents))
        self._verify_combiner(check)
        dtype = DType.I64 if self.combiner in ARG_COMBINERS else self.body.dtype
        check.typed(self.output, self.extents[: self.rank], dtype)

    def _verify_map(self, check: OpCheck, value: Value, index_map: IndexMap) -> None:
        if len(index_map.results) != value.type.rank:
            raise check.fail(
                f"map {index_map} has {len(index_map.results)} results for {value}: {value.type}"
            )
        empty = any(e == 0 for e in self.extents)
        for result, extent in zip(index_map.results, value.type.shape, strict=True):
            used = [d for d, _ in result.terms]
            if used != sorted(set(used)) or any(c == 0 for _, c in result.terms):
                raise check.fail(f"map {index_map} of {value} is not in canonical form")
            if any(not 0 <= d < len(self.extents) for d in used):
                raise check.fail(
                    f"map {index_map} of {value} uses a dim outside the {len(self.extents)} dims"
                )
            check.known(result.offset, f"the map of {value}")
            if result.single is not None and self.extents[result.single] == extent:
                continue
            low, high = result.offset, result.offset
            for d, c in result.terms:
                check.known(c, f"the map of {value}")
                reach = dims.mul(c, dims.add(self.extents[d], -1))
                if dims.bounds(c)[0] >= 0:
                    high = dims.add(high, reach)
                elif dims.bounds(c)[1] <= 0:
                    low = dims.add(low, reach)
            if not empty and index_map.fill is None:
                check.inside(f"map {index_map} of {value}", low, high, extent)

    def _verify_combiner(self, check: OpCheck) -> None:
        reduced = len(self.extents) - self.rank
        if reduced < 0:
            raise check.fail(f"{self.output} has rank {self.rank}, over {len(self.extents)} dims")
        if reduced == 0:
            if self.combiner is not None:
                raise check.fail(f"has combiner {self.combiner!r} and no reduced dim")
            return
        if self.combiner not in COMBINERS:
            raise check.fail(f"has reduced dims and combiner {self.combiner!r}, not one of {COMBINERS}")
        if self.combiner in ARG_COMBINERS and reduced != 1:
            raise check.fail(f"{self.combiner} has {reduced} reduced dims, not 1")
        if not accepts(self.combiner, self.body.dtype):
            raise check.fail(f"combiner {self.combiner!r} does not take {self.body.dtype.value}")

    # Meaning and cost ---------------------------------------------------------------------------
    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """By broadcasting (`mansard.ir.ops.generic_reference`)."""
        from mansard.ir.ops.generic_reference import run_generic

        return [run_generic(self, operands, symbols)]

    def operations(self) -> DimLike:
        """The body's at every point of the iteration space, and the combiner's."""
        # Contractions widen narrow factors in the multiplication itself: those casts are free.
        counted = (Apply,) if self.is_contraction else (Apply, Cast)
        each = sum(
            scalar_op(n.op).operations if isinstance(n, Apply) else 1
            for n in walk(self.body)
            if isinstance(n, counted)
        )
        return dims.mul(dims.product(self.extents), each + (self.combiner is not None))

    # Text ---------------------------------------------------------------------------------------
    def text(self) -> str:
        """``generic (d0:4, d1:5 | d2:8) add {…}``: dims after the bar are reduced."""
        named = [f"d{i}:{e}" for i, e in enumerate(self.extents)]
        parallel, reduced = ", ".join(named[: self.rank]), ", ".join(named[self.rank :])
        loops = f"{parallel} | {reduced}".lstrip() if reduced else parallel
        combiner = f"{self.combiner} " if self.combiner else ""
        body = body_text(tuple(zip(self.inputs, self.maps, strict=True)), self.body)
        return f"generic ({loops}) {combiner}{body}"

    @classmethod
    def read(cls, scanner: Scanner, outputs: tuple[Value, ...]) -> dict[str, Any]:
        """The opposite of `text`."""
        start = scanner.position
        if len(outputs) != 1:
            scanner.fail("a generic with one result", start)
        extents: list[DimLike] = []
        parallel: int | None = None
        scanner.expect("(")
        start = scanner.position
        while not scanner.accept(")"):
            if scanner.accept("|"):
                parallel = len(extents)
            elif extents:
                scanner.expect(",")
            scanner.expect(f"d{len(extents)}")
            scanner.expect(":")
            extents.append(scanner.dim())
        rank = outputs[0].type.rank
        if rank != (len(extents) if parallel is None else parallel):
            scanner.fail(f"{rank} loops before the bar, as many as the result has dims", start)
        combiner = scanner.one_of(COMBINERS)
        operands, body = read_body(scanner)
        return {
            "inputs": tuple(value for value, _ in operands),
            "extents": tuple(extents),
            "maps": tuple(index_map for _, index_map in operands),
            "body": body,
            "combiner": combiner,
        }
