"""Transfers between the devices of a plan: every value with its producer and its consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mansard import dims
from mansard.plan.dataflow import dataflow

if TYPE_CHECKING:
    from mansard.plan.plan import Plan


def crossings(plan: Plan) -> list[dict[str, Any]]:
    """One entry per value and device that receives it from another, in the model's order: ``value``,
    ``from`` and ``to`` (device slots), ``made_by`` and ``read_by`` (dispatches) and ``bytes``, with dims at a
    representative size. Devices that share memory do not copy it. Inputs come from the caller and are not
    listed.
    """
    nodes, names = dataflow(plan), [device.name for device in plan.devices]
    readers: dict[int, list[str]] = {}
    for node in nodes:
        for parent in node.parents:
            if node.kind == "dispatch":
                readers.setdefault(parent, []).append(node.label)
    return [
        {
            "value": node.label.removeprefix("transfer "),
            "from": names[node.source],
            "to": names[node.slot],
            "made_by": [nodes[p].label for p in node.parents],
            "read_by": readers.get(number, []),
            "bytes": dims.representative(node.bytes),
        }
        for number, node in enumerate(nodes)
        if node.kind == "transfer" and node.source is not None
    ]


def by_pair(rows: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Values and bytes of `crossings` by source and destination device."""
    crossings: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        count, size = crossings.get((row["from"], row["to"]), (0, 0))
        crossings[row["from"], row["to"]] = (count + 1, size + row["bytes"])
    return crossings
