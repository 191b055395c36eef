"""Slice: every so many elements of a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import DimLike
from mansard.errors import VerificationError
from mansard.ir.interpreter.scalar import Array
from mansard.ir.op_check import OpCheck
from mansard.ir.ops.base import Op
from mansard.ir.ops.registry import register_op
from mansard.ir.text.attributes import DIMS, INTEGERS, Keyword


@register_op
@dataclass(frozen=True, eq=False)
class Slice(Op):
    """``out[i…] = in[offsets + i * strides]``; sizes are the result's shape. Strides are positive ints."""

    offsets: tuple[DimLike, ...]
    strides: tuple[int, ...]

    attributes = (Keyword("offsets", DIMS), Keyword("strides", INTEGERS))

    def verify(self, check: OpCheck) -> None:
        """The part lies inside the operand, as far as the dims' contracts tell."""
        check.counts((1,), 1)
        x, out = self.inputs[0], self.output
        check.lengths(x, offsets=self.offsets, strides=self.strides, shape=out.type.shape)
        if x.type.dtype is not out.type.dtype:
            raise check.fail(f"{x} is {x.type.dtype.value}, {out} is {out.type.dtype.value}")
        for extent, offset, stride, size in zip(
            x.type.shape, self.offsets, self.strides, out.type.shape, strict=True
        ):
            if stride < 1:
                raise check.fail(f"stride {stride} is not positive")
            check.known(offset, "an offset")
            if size != 0:
                last = dims.add(offset, dims.mul(dims.add(size, -1), stride))
                check.inside(f"the slice of {x}", offset, last, extent)

    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """A view; reading outside is an error."""
        (x,) = operands
        index = []
        for offset, stride, size, extent in zip(
            self.offsets, self.strides, self.output.type.concrete(symbols), x.shape, strict=True
        ):
            start = dims.evaluate(offset, symbols)
            last = start + (size - 1) * stride
            if size and not 0 <= start <= last < extent:
                raise VerificationError(
                    f"op slice ({self.output}): reads {start} to {last} of a dim of {extent}"
                )
            index.append(slice(start, last + 1, stride) if size else slice(0, 0))
        return [x[tuple(index)]]
