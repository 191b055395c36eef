"""What a rule for tensors of bounded size sees of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mansard.frontends.pytorch.bounded.sizes import Shape, evaluated, is_open, open_axes


@dataclass
class Call:
    """A call of ``target`` while its replacement is traced.

    Tensors among ``args`` and ``kwargs`` have their bounds as sizes, and numbers that depend on the content
    of tensors are int64 tensors of rank 0. ``shapes`` are those of the positional operands in the program,
    None for what is no tensor, and ``result`` and ``dtype`` are those of the first result. The valid elements
    of a tensor are the first of each axis; all others are arbitrary.
    """

    target: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    shapes: Sequence[Any]
    result: Shape
    counts: Mapping[Any, torch.Tensor]
    bounds: Mapping[int, Any]
    bounds_of: Any
    dtype: torch.dtype = torch.int64
    requirements: list[tuple[torch.Tensor, str]] = field(default_factory=list)
    """Conditions that a call has to meet at run time, with what to say where it does not."""

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An operand by position or name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def open(self, position: int = 0) -> list[int]:
        """The axes of an operand whose sizes depend on contents."""
        return open_axes(self.shapes[position])

    def bound(self, size: Any) -> Any:
        """The bound of a size, or the size."""
        return self.bounds_of(size) if is_open(size) else size

    def count(self, size: Any) -> torch.Tensor:
        """The value of a size at run time: int64, rank 0."""
        if not is_open(size):
            like = self.tensors()[0]
            return torch.full((), size, dtype=torch.int64, device=like.device)
        value: torch.Tensor = evaluated(size.node.expr, self.counts)
        return value

    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the operands, and the counts."""
        leaves = torch.utils._pytree.tree_leaves((list(self.args), dict(self.kwargs)))
        return [x for x in (*leaves, *self.counts.values()) if isinstance(x, torch.Tensor)]

    def valid(self, position: int, axes: Sequence[int]) -> torch.Tensor:
        """Whether an element of an operand is valid along these axes, with ones as its other sizes."""
        return self.valid_in(self.args[position], self.shapes[position], axes)

    def valid_in(self, x: torch.Tensor, shape: Shape, axes: Sequence[int]) -> torch.Tensor:
        """As `valid`, of a tensor of a shape."""
        result: torch.Tensor | None = None
        for axis in axes:
            along = [1] * x.dim()
            along[axis] = -1
            mask = (torch.arange(x.shape[axis], device=x.device) < self.count(shape[axis])).reshape(along)
            result = mask if result is None else result & mask
        assert result is not None
        return result

    def filled(self, position: int, axes: Sequence[int], value: Any) -> torch.Tensor:
        """An operand with a value for its elements that are not valid along some of its axes."""
        x: torch.Tensor = self.args[position]
        open_ones = [axis for axis in self.open(position) if axis in axes]
        return torch.where(self.valid(position, open_ones), x, value) if open_ones else x

    def cleaned(self, position: int, value: Any) -> torch.Tensor:
        """An operand with a value for all elements that are not valid."""
        return self.filled(position, range(len(self.shapes[position])), value)

    def call(self, first: torch.Tensor) -> Any:
        """The call with another first operand."""
        return self.target(first, *self.args[1:], **self.kwargs)

    def require(self, condition: torch.Tensor, message: str) -> None:
        """Fail a call of the model with ``message`` where the condition does not hold."""
        self.requirements.append((condition, message))


def axes_of(dim: Any, rank: int) -> list[int]:
    """Axes as an op's argument states them, by their numbers from the front; None or none for all."""
    given = [dim] if isinstance(dim, int) else list(dim or ())
    return [d % rank for d in given] if given and rank else list(range(rank))


def least(dtype: torch.dtype) -> Any:
    """A number of a type that none is below."""
    if dtype is torch.bool:
        return False
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def greatest(dtype: torch.dtype) -> Any:
    """A number of a type that none is above."""
    if dtype is torch.bool:
        return True
    return torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max
