"""Whether the caches of a language model fit the devices it is for."""

from __future__ import annotations

from collections.abc import Mapping

from mansard.errors import OutOfMemoryError
from mansard.hal import registry
from mansard.language.description import Description
from mansard.plan.plan import Plan


def check_cache_size(plan: Plan) -> None:
    """Raise OutOfMemoryError for states of a model that exceed the memory of a device that is present."""
    states = _state_bytes(plan)
    drivers = {device.partition(":")[0] for device in states}
    present = [info for name in sorted(drivers) for info in registry.devices(name)]
    memory = {info.id: max((heap.size for heap in info.heaps), default=0) for info in present}
    for device, size in states.items():
        if size > memory.get(device, 0) > 0:
            description = Description.from_info(plan.info)
            raise OutOfMemoryError(
                f"a cache of {description.context} positions of {description.sequences} sequences takes "
                f"{size / 1e9:.4g} GB on {device}, which has {memory[device] / 1e9:.4g} GB: choose a smaller "
                "context (context=…), fewer sequences, or a smaller element type (cache_dtype=…)"
            )


def _state_bytes(plan: Plan) -> Mapping[str, int]:
    """Bytes of the states of all methods by device, each state once."""
    sizes: dict[tuple[str, str], int] = {}
    for each in plan.all_plans():
        values = {value.id: value for value in each.values}
        for entry, _ in each.states:
            value = values[entry]
            if isinstance(value.bytes, int):
                sizes[each.devices[value.device].name, value.name] = value.bytes
    totals: dict[str, int] = {}
    for (device, _), size in sizes.items():
        totals[device] = totals.get(device, 0) + size
    return totals
