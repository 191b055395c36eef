"""Scalar bodies: the element-wise program inside a `Generic`.

A body is an expression tree of frozen nodes (shared subtrees are the same object). The ops that `Apply` may
name are declared in `mansard.ir.scalar_ops`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Union

from mansard.dims import DimLike
from mansard.dtypes import DType


@dataclass(frozen=True)
class Arg:
    """The element of operand ``index``, read through the operand's index map."""

    index: int
    dtype: DType


@dataclass(frozen=True)
class Const:
    """A literal."""

    value: float | int | bool
    dtype: DType

    def __eq__(self, other: object) -> bool:
        # repr tells 0.0 from -0.0 and makes NaN equal to itself.
        return isinstance(other, Const) and (repr(self.value), self.dtype) == (repr(other.value), other.dtype)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype))


@dataclass(frozen=True)
class Index:
    """The value of iteration dim ``dim``, as i64."""

    dim: int
    dtype: DType = DType.I64


@dataclass(frozen=True)
class DimValue:
    """The value of a dim expression, as i64."""

    value: DimLike
    dtype: DType = DType.I64


@dataclass(frozen=True)
class Gather:
    """The element of operand ``operand`` at computed ``indices`` (i64, one per operand dim).

    Indices are clamped into the operand's shape, so that no input can read outside a buffer. The
    operand's index map is None.
    """

    operand: int
    indices: tuple[Scalar, ...]
    dtype: DType


@dataclass(frozen=True)
class Apply:
    """An op of `mansard.ir.scalar_ops` on scalars. For ``select``: condition, then, else."""

    op: str
    args: tuple[Scalar, ...]
    dtype: DType


@dataclass(frozen=True)
class Cast:
    """Conversion to another type: floats to integers truncate and saturate, NaN gives 0;
    to bool is ``!= 0``; integers wrap."""

    arg: Scalar
    dtype: DType


@dataclass(frozen=True)
class Bitcast:
    """The same bits as another type of the same width."""

    arg: Scalar
    dtype: DType


Scalar = Union[Arg, Const, Index, DimValue, Gather, Apply, Cast, Bitcast]
NODES = (Arg, Const, Index, DimValue, Gather, Apply, Cast, Bitcast)
"""The classes of nodes."""
Rewriter = Callable[[Scalar], Scalar]


def children(node: Scalar) -> tuple[Scalar, ...]:
    """The direct operands of a node."""
    if isinstance(node, Apply):
        return node.args
    if isinstance(node, Gather):
        return node.indices
    if isinstance(node, (Cast, Bitcast)):
        return (node.arg,)
    return ()


def with_children(node: Scalar, new: tuple[Scalar, ...]) -> Scalar:
    """The node with its direct operands replaced; the node itself where they are what it has."""
    if all(map(operator.is_, children(node), new)):
        return node
    if isinstance(node, Apply):
        return Apply(node.op, new, node.dtype)
    if isinstance(node, Gather):
        return Gather(node.operand, new, node.dtype)
    if isinstance(node, Cast):
        return Cast(new[0], node.dtype)
    if isinstance(node, Bitcast):
        return Bitcast(new[0], node.dtype)
    return node


def walk(root: Scalar) -> Iterator[Scalar]:
    """Every distinct node, operands before users."""
    # Passes walk the same bodies repeatedly: the order is cached on the node, without the node itself, which
    # would be a reference cycle.
    below: tuple[Scalar, ...] | None = root.__dict__.get("_below")
    if below is None:
        below = tuple(_below(root))
        object.__setattr__(root, "_below", below)
    yield from below
    yield root


def _below(root: Scalar) -> Iterator[Scalar]:
    seen: set[int] = {id(root)}
    stack: list[tuple[Scalar, bool]] = [(child, False) for child in reversed(children(root))]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        stack.append((node, True))
        stack.extend((child, False) for child in reversed(children(node)))


def rewrite(root: Scalar, leaf: Rewriter) -> Scalar:
    """Rebuild bottom-up: ``leaf(node)`` gets each node after its operands were rebuilt."""
    done: dict[int, Scalar] = {}
    for node in walk(root):
        done[id(node)] = leaf(with_children(node, tuple([done[id(k)] for k in children(node)])))
    return done[id(root)]


def count_ops(root: Scalar) -> int:
    """Number of distinct Apply and Cast nodes: the arithmetic of one element."""
    return sum(isinstance(n, (Apply, Cast)) for n in walk(root))


def operands(root: Scalar) -> frozenset[int]:
    """Indices of the operands the body reads, by Arg or Gather."""
    read = {n.index for n in walk(root) if isinstance(n, Arg)}
    return frozenset(read | {n.operand for n in walk(root) if isinstance(n, Gather)})
