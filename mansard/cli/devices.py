"""``mansard devices``: list the usable devices, and why the others cannot be used."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.explain import variant_lines, variants
from mansard.cli.limits import LimitsOption
from mansard.cli.output import JsonOption, Output, si
from mansard.errors import CompileError

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.hal import DeviceInfo

TARGET_WIDTH = 40


def devices(
    all_: Annotated[bool, typer.Option("--all", help="Also list simulated devices.")] = False,
    dump: Annotated[
        bool,
        typer.Option("--dump", help="All details of each device: features, limits, memory, queues, target."),
    ] = False,
    artifact: Annotated[
        Path | None,
        typer.Option(
            metavar="ARTIFACT", help="Also show which of the artifact's variants runs here, and why."
        ),
    ] = None,
    limits: LimitsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the usable devices, and why the others cannot be used."""
    from mansard.hal import registry

    with Output(as_json) as out:
        infos = [info for info in registry.devices() if all_ or info.kind != "simulated"]
        if dump:
            for info in infos:
                out.show("\n".join(dump_lines(info)) + "\n")
        else:
            out.show(device_table(infos))
        chosen = _variants(artifact) if artifact else []
        for line in variant_lines(chosen):
            out.show(line)
        rows = [describe(info) for info in infos]
        out.result({"devices": rows, "variants": chosen} if artifact else rows)


def _variants(artifact: Path) -> list[dict[str, Any]]:
    from mansard.artifact.resources import read_artifact

    plan, resources = read_artifact(artifact, verify="code")
    resources.close()
    return variants(plan)


def describe(info: DeviceInfo) -> dict[str, Any]:
    """A device as in the JSON output."""
    return {
        "id": info.id,
        "name": info.name,
        "kind": info.kind,
        "driver": info.driver,
        "index": info.index,
        "target": info.target,
        "target_hint": target_hint(info),
        "tier": info.tier,
        "supported": info.supported,
        "reasons": list(info.reasons),
        "api_version": info.api_version,
        "driver_version": info.driver_version,
        "calibrated": measured_on(info),
        "memory_bytes": memory_bytes(info),
        "heaps": [dataclasses.asdict(heap) for heap in info.heaps],
        "memory_types": [dataclasses.asdict(kind) for kind in info.memory_types],
        "queues": [dataclasses.asdict(family) for family in info.queues],
        "extensions": list(info.extensions),
        "features": dict(info.features),
        "limits": dict(info.limits),
    }


def target_hint(info: DeviceInfo) -> str:
    """The ``--target`` with which another machine compiles for the device; empty when it cannot be used."""
    if not info.supported:
        return ""
    from mansard.compiler.targets import backend

    try:
        return backend(info.driver).hint(info)
    except CompileError:  # a driver without a compiler, or a compiler that is not installed
        return info.target


def measured_on(info: DeviceInfo) -> str:
    """The date on which `mansard calibrate` measured the device; empty if it did not."""
    from mansard.targets.calibrated import calibrated

    profile = calibrated(info)
    return profile.measured if profile is not None else ""


def memory_bytes(info: DeviceInfo) -> int:
    """The size of the largest heap, device-local if there is one."""
    device_local = [heap.size for heap in info.heaps if heap.device_local]
    return max(device_local or [heap.size for heap in info.heaps] or [0])


def dump_lines(info: DeviceInfo) -> list[str]:
    """All details of a device, as text."""
    lines = [f"{info.id}: {info.name}", f"  {info.tier}", *(f"    {reason}" for reason in info.reasons)]
    facts = {
        "kind": info.kind,
        "API version": info.api_version,
        "driver": info.driver_version,
        "target to compile for": target_hint(info),
        "calibrated": measured_on(info),
    }
    lines += [f"  {title}: {text}" for title, text in facts.items() if text]
    heaps = [f"{si(h.size, 'B')}{_in_parentheses(_heap_properties(h))}" for h in info.heaps]
    types = [f"heap {t.heap}{_in_parentheses(t.properties)}" for t in info.memory_types]
    queues = [
        f"{f.count} for {', '.join(f.abilities)}{'' if f.timestamps else ', without timestamps'}"
        for f in info.queues
    ]
    for title, entries in (("heap", heaps), ("memory type", types), ("queue family", queues)):
        lines += [f"  {title} {number}: {entry}" for number, entry in enumerate(entries)]
    if info.extensions:
        lines.append(f"  extensions used: {', '.join(info.extensions)}")
    lines += _section("features", sorted(name for name, present in info.features.items() if present))
    lines += _section("lacks", sorted(name for name, present in info.features.items() if not present))
    lines += _limit_lines(info.limits)
    return lines


def _heap_properties(heap: Any) -> list[str]:
    return [name for name in ("device_local", "host_visible") if getattr(heap, name)]


def _in_parentheses(properties: Iterable[str]) -> str:
    listed = ", ".join(properties)
    return f" ({listed})" if listed else ""


def _section(title: str, names: Sequence[str]) -> list[str]:
    return [f"  {title}: {', '.join(names)}"] if names else []


def _limit_lines(limits: Mapping[str, int]) -> list[str]:
    if not limits:
        return []
    width = max(map(len, limits))
    unbounded = 1 << 62
    return [
        "  limits:",
        *(
            f"    {name:<{width}}  {'none' if value >= unbounded else value}"
            for name, value in sorted(limits.items())
        ),
    ]


def device_table(infos: Sequence[DeviceInfo]) -> Table:
    """A row per device."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("id", "name", "kind", "target", "memory", "usable"):
        table.add_column(title, overflow="fold")
    for info in infos:
        usable = Text("yes", "green") if info.supported else Text("no: " + "; ".join(info.reasons), "yellow")
        memory = memory_bytes(info)
        size = si(memory, "B") if memory else ""
        table.add_row(info.id, Text(info.name), info.kind, Text(_without_features(info.target)), size, usable)
    return table


def _without_features(target: str) -> str:
    """The target without a CPU's feature list, to fit a table; ``--json`` has all of it."""
    return target if len(target) <= TARGET_WIDTH else target[: TARGET_WIDTH - 1] + "…"
