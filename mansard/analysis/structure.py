"""Structural identity of bodies and ops: two things with one key compute the same.

Bodies are graphs with shared nodes, so plain ``==`` and ``hash`` (which follow every path) could
take exponential time; keys number each distinct node once.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

from mansard.ir.ops import Op
from mansard.ir.scalar import (
    NODES,
    Apply,
    Arg,
    Bitcast,
    Cast,
    Const,
    DimValue,
    Gather,
    Index,
    Scalar,
    children,
    walk,
    with_children,
)


def share(root: Scalar) -> Scalar:
    """The body with equal subtrees made one object; ``root`` itself when there are none."""
    table: dict[Hashable, Scalar] = {}
    done: dict[int, Scalar] = {}
    for node in walk(root):
        new = tuple([done[id(k)] for k in children(node)])
        done[id(node)] = table.setdefault((_label(node), tuple(map(id, new))), with_children(node, new))
    return done[id(root)]


def body_key(root: Scalar) -> Hashable:
    """A key that two bodies share exactly when they are equal."""
    numbers: dict[Hashable, int] = {}
    done: dict[int, int] = {}
    for node in walk(root):
        entry = (_label(node), tuple(done[id(k)] for k in children(node)))
        done[id(node)] = numbers.setdefault(entry, len(numbers))
    return tuple(numbers)


_attributes: WeakKeyDictionary[Op, Hashable] = WeakKeyDictionary()


def attributes(op: Op) -> Hashable:
    """Everything that decides an op's results but its operands."""
    if op not in _attributes:
        _attributes[op] = _attributes_of(op)
    return _attributes[op]


def _attributes_of(op: Op) -> Hashable:
    fields = (_field_key(getattr(op, name)) for name in op.attribute_fields())
    return op.name, tuple(v.type for v in op.outputs), *fields


def _field_key(value: Any) -> Hashable:
    if isinstance(value, NODES):
        return body_key(value)
    # The text tells 0.0 from -0.0, and makes NaN equal to itself.
    if isinstance(value, float):
        return repr(value)
    key: Hashable = value
    return key


def _label(node: Scalar) -> Hashable:
    """What tells a node from others with the same operands."""
    match node:
        case Apply():
            return "apply", node.op, node.dtype
        case Cast():
            return "cast", node.dtype
        case Bitcast():
            return "bitcast", node.dtype
        case Gather():
            return "gather", node.operand, node.dtype
        case Arg() | Const() | Index() | DimValue():
            return node
