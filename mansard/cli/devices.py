"""``mansard devices``: what can be used here, and why the rest cannot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.explain import variant_lines, variants
from mansard.cli.output import JsonOption, Output, si

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.hal import DeviceInfo

TARGET_WIDTH = 40


def devices(
    all_: Annotated[bool, typer.Option("--all", help="Also list simulated devices.")] = False,
    artifact: Annotated[
        Path | None,
        typer.Option(metavar="ARTIFACT", help="Also say which of the artifact's CPU variants runs here."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List devices: what can be used, and why the rest cannot."""
    from mansard.hal import registry

    with Output(as_json) as out:
        found = [info for info in registry.devices() if all_ or info.kind != "simulated"]
        out.show(device_table(found))
        chosen = _variants(artifact) if artifact else []
        for line in variant_lines(chosen):
            out.show(line)
        rows = [describe(info) for info in found]
        out.result({"devices": rows, "variants": chosen} if artifact else rows)


def _variants(artifact: Path) -> list[dict[str, Any]]:
    from mansard.artifact.resources import read_artifact

    plan, resources = read_artifact(artifact, verify="code")
    resources.close()
    return variants(plan)


def describe(info: DeviceInfo) -> dict[str, Any]:
    """A device as the JSON output has it."""
    return {
        "id": info.id,
        "name": info.name,
        "kind": info.kind,
        "driver": info.driver,
        "index": info.index,
        "target": info.target,
        "supported": info.supported,
        "reasons": list(info.reasons),
        "api_version": info.api_version,
        "driver_version": info.driver_version,
        "memory_bytes": memory_bytes(info),
        "heaps": [
            {"size": heap.size, "device_local": heap.device_local, "host_visible": heap.host_visible}
            for heap in info.heaps
        ],
        "features": dict(info.features),
        "limits": dict(info.limits),
    }


def memory_bytes(info: DeviceInfo) -> int:
    """The largest heap: of the device's own memory where it has some."""
    own = [heap.size for heap in info.heaps if heap.device_local]
    return max(own or [heap.size for heap in info.heaps] or [0])


def device_table(found: Sequence[DeviceInfo]) -> Table:
    """Devices for people."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("id", "name", "kind", "target", "memory", "usable"):
        table.add_column(title, overflow="fold")
    for info in found:
        usable = Text("yes", "green") if info.supported else Text("no: " + "; ".join(info.reasons), "yellow")
        memory = memory_bytes(info)
        size = si(memory, "B") if memory else ""
        table.add_row(info.id, Text(info.name), info.kind, Text(_short(info.target)), size, usable)
    return table


def _short(target: str) -> str:
    """A target that fits a table: a CPU's lists every feature; ``--json`` has it whole."""
    return target if len(target) <= TARGET_WIDTH else target[: TARGET_WIDTH - 1] + "…"
