"""A program of named ops, and the encodings of its quantised values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mansard.ir.types import Constant, Value
from mansard.regions.named.ops import NamedOp


@dataclass(frozen=True)
class Encoding:
    """How integers stand for real numbers: ``real = (integer - zero) * scale``.

    There is one scale, or one for each index along ``axis``. Where nothing in a graph says which scale a
    value has (an int8 model whose scales were multiplied into those of its weights), it is one that the ops
    beside it agree on: what they compute in integers depends on ratios of scales alone.
    """

    scales: tuple[float, ...]
    zero: int = 0
    axis: int | None = None

    @property
    def scale(self) -> float:
        """The scale of a value that has one; ValueError for one per channel."""
        (scale,) = self.scales
        return scale


@dataclass(frozen=True)
class NamedGraph:
    """Named ops in execution order. Shapes are static: every extent is an int.

    ``inputs``, ``outputs`` and what the ops compute of them are values of the Graph they were raised from, or
    new ones between these.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    ops: tuple[NamedOp, ...]
    constants: Mapping[Value, Constant] = field(default_factory=dict)
    encodings: Mapping[Value, Encoding] = field(default_factory=dict)
    """Of the integer values that stand for real numbers, constants among them. An integer value without one
    is a plain integer."""

    def producers(self) -> dict[Value, NamedOp]:
        """The op that defines each value."""
        return {op.output: op for op in self.ops}

    def users(self) -> dict[Value, list[NamedOp]]:
        """The ops that read each value, each op once."""
        users: dict[Value, list[NamedOp]] = {}
        for op in self.ops:
            for value in dict.fromkeys(op.inputs):
                users.setdefault(value, []).append(op)
        return users

    def __str__(self) -> str:
        from mansard.regions.named.text import named_text

        return named_text(self)
