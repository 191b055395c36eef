"""Operators put into a program one after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.regions.tosa.program import NUMPY, Array, TosaOp, TosaProgram
from mansard.regions.tosa.rescale import multiplier_and_shift


class Builder:
    """A program that is being written. ``rounding`` is the rounding mode of every RESCALE."""

    def __init__(self, rounding: str = "SINGLE_ROUND") -> None:
        self.rounding = rounding
        self.label = ""
        self._inputs: list[str] = []
        self._tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._constants: dict[str, tuple[str, Array]] = {}
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.ops: list[TosaOp] = []
        self._labels: dict[str, str] = {}

    def mark(self) -> tuple[int, set[str]]:
        """Where the program is, for `undo`."""
        return len(self.ops), set(self._tensors)

    def undo(self, mark: tuple[int, set[str]]) -> None:
        """Take back the operators since a mark."""
        count, tensors = mark
        del self.ops[count:]
        self._tensors = {name: entry for name, entry in self._tensors.items() if name in tensors}

    def input(self, dtype: str, shape: Sequence[int]) -> str:
        """A new input."""
        name = f"in{len(self._inputs)}"
        self._inputs.append(name)
        self._tensors[name] = (dtype, tuple(shape))
        return name

    def constant(self, dtype: str, values: npt.ArrayLike) -> str:
        """A constant; equal ones are one."""
        array = np.ascontiguousarray(np.asarray(values).astype(NUMPY[dtype]))
        key = (dtype, array.shape, array.tobytes())
        if key not in self._names:
            self._names[key] = name = f"c{len(self._names)}"
            self._constants[name] = (dtype, array)
        return self._names[key]

    def op(
        self, kind: str, inputs: Sequence[str], dtype: str, shape: Sequence[int], **attributes: Any
    ) -> str:
        """The result of an operator."""
        name = f"t{len(self._tensors)}"
        self._tensors[name] = (dtype, tuple(shape))
        self._labels[name] = self.label
        self.ops.append(TosaOp(kind, tuple(inputs), name, attributes))
        return name

    def shape_of(self, tensor: str) -> tuple[int, ...]:
        """The shape of an input or result."""
        return self._tensors[tensor][1]

    def dtype_of(self, tensor: str) -> str:
        """The element type of an input or result."""
        return self._tensors[tensor][0]

    def rescale(
        self,
        tensor: str,
        scales: npt.ArrayLike,
        into: str,
        *,
        in_zero: int = 0,
        out_zero: int = 0,
        in_unsigned: bool = False,
        out_unsigned: bool = False,
    ) -> str:
        """``(x - in_zero) * scale + out_zero``, saturated; with several scales, one for each index of the
        last dim. Raises ValueError for scales that RESCALE does not have."""
        dtype, shape = self._tensors[tensor]
        wide = dtype == "INT48"  # whose multipliers have 15 bits
        bits = 15 if wide else 31
        pairs = [multiplier_and_shift(float(scale), bits) for scale in np.asarray(scales).reshape(-1)]
        operands = (
            tensor,
            self.constant("INT16" if wide else "INT32", [multiplier for multiplier, _ in pairs]),
            self.constant("INT8", [shift for _, shift in pairs]),
            self.constant(dtype, [_stored(in_zero, in_unsigned)]),
            self.constant(into, [_stored(out_zero, out_unsigned)]),
        )
        return self.op(
            "RESCALE", operands, into, shape,
            scale32=not wide, rounding_mode="SINGLE_ROUND" if wide else self.rounding,
            per_channel=len(pairs) > 1, input_unsigned=in_unsigned,
            output_unsigned=out_unsigned,
        )  # fmt: skip

    def reshape(self, tensor: str, shape: Sequence[int]) -> str:
        """The same elements in another shape."""
        dtype, before = self._tensors[tensor]
        if tuple(shape) == before:
            return tensor
        assert math.prod(shape) == math.prod(before)
        return self.op("RESHAPE", (tensor, self.constant("SHAPE", shape)), dtype, shape)

    def clamp(self, tensor: str, low: int, high: int) -> str:
        """Elements of an 8- or 16-bit tensor within bounds."""
        dtype, shape = self._tensors[tensor]
        return self.op("CLAMP", (tensor,), dtype, shape, min_val=low, max_val=high, nan_mode="PROPAGATE")

    def program(self, outputs: Sequence[str]) -> TosaProgram:
        """The program."""
        used = {name for op in self.ops for name in op.inputs} | set(outputs)
        constants = {name: entry for name, entry in self._constants.items() if name in used}
        return TosaProgram(
            tuple(self._inputs), tuple(outputs), dict(self._tensors), constants, tuple(self.ops), self._labels
        )


def _stored(zero: int, unsigned: bool) -> int:
    """A zero point as the signed integer of the same bits."""
    return zero - 256 if unsigned and zero > 127 else zero
