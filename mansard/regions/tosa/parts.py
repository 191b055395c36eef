"""The parts of a quantised graph that can be programs by themselves: for toolchains that name no op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mansard.ir.types import Value
from mansard.regions.named import NamedGraph, NamedOp


def integer_parts(region: NamedGraph) -> Iterator[NamedGraph]:
    """The smallest parts of a region with integers between them: ops that f32 values join are one."""
    group: dict[Value, list[NamedOp]] = {}
    for op in region.ops:
        joined = [op]
        for value in op.inputs:
            if value.type.dtype.is_float and value in group and group[value] is not joined:
                joined = [*group[value], *joined]
        for member in dict.fromkeys(joined):
            group[member.output] = joined
    users = region.users()
    for ops in {id(ops): dict.fromkeys(ops) for ops in group.values()}.values():
        made = {op.output for op in ops}
        read = dict.fromkeys(value for op in ops for value in op.inputs if value not in made)
        outputs = [
            op.output
            for op in ops
            if op.output in region.outputs or any(user not in ops for user in users.get(op.output, ()))
        ]
        inputs = tuple(value for value in read if value not in region.constants)
        yield replace(region, inputs=inputs, outputs=tuple(outputs), ops=tuple(ops))
