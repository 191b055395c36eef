"""How long devices take to hand over to each other, and to and from the host.

    python -m benchmarks.dispatch.handoff [--device cpu --device vulkan ...] [--turns 300] [--json FILE]

For every ordered pair of devices, and each with itself: microseconds from the end of work on the first until
the second, which was told to wait for it, begins, by the devices' own clocks brought to the host's. The least
and the median of `--turns` handoffs, after next to no work (`0`) and after about 300 us of it, when threads
that wait may be asleep. With a host that waits for the end (`waits`: a thread that waits looks at devices and
runs what is ready) and with one that stays away (`away`, as under an event loop).

Where two devices are joined by the native core the median is told in parts: `noticed` is from the first one's
end until the core knows of it (a GPU's interrupt, or a look at its timeline semaphore), `passed` from there
until the batch of the second has no wait left, `started` from there until its work begins (the thread that
runs it wakes up, or the GPU takes it from its queue). From the host: from its signal on. To the host: until
the thread that waits goes on, or (`away`) until the runtime's callback runs.

Without `--device` all devices that can be used, in one process, but for those that compute nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mansard.calibration.handoffs import WORK_SECONDS, Handoff, between, from_host, to_host
from mansard.calibration.links import wake
from mansard.hal import Device, registry

PARTS = ("noticed", "passed", "started")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", action="append", metavar="NAME", help="a device; again for more")
    parser.add_argument("--turns", type=int, default=300, help="handoffs of each kind")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", nargs="?", const=Path("-"), help="- or no FILE: print"
    )
    options = parser.parse_args(arguments)
    devices = [registry.open_device(name) for name in options.device or _usable()]
    rows = measure(devices, options.turns)
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": platform.machine(),
        "devices": {device.info.id: device.info.name for device in devices},
        "turns": options.turns,
        "rows": rows,
    }
    text = json.dumps(result, indent=1)
    if options.json == Path("-"):
        print(text)
        return
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(table(rows))


def _usable() -> list[str]:
    infos = [info for info in registry.devices() if info.supported]
    opened = [registry.open_device(info.id) for info in infos]
    return [device.info.id for device in opened if not device.capabilities.simulated]


def measure(devices: Sequence[Device], repeats: int) -> list[dict[str, Any]]:
    """A row for each way of handing over; times in microseconds."""
    rows = []
    for attended in (True, False):
        for target in devices:
            wake(target)
            handoffs = from_host(target, repeats, attended=attended)
            rows.append(_row("host", target.info.id, 0.0, attended, handoffs))
        for source in devices:
            for seconds in (0.0, WORK_SECONDS):
                for target in devices:
                    wake(source)
                    wake(target)
                    handoffs = between(source, target, repeats, seconds, attended=attended)
                    rows.append(_row(source.info.id, target.info.id, seconds, attended, handoffs))
                wake(source)
                handoffs = to_host(source, repeats, seconds, attended=attended)
                rows.append(_row(source.info.id, "host", seconds, attended, handoffs))
    return rows


def _row(
    source: str, target: str, seconds: float, attended: bool, handoffs: Sequence[Handoff]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "from": source,
        "to": target,
        "work_us": round(seconds * 1e6),
        "host": "waits" if attended else "away",
        "min_us": round(min(each.total for each in handoffs) / 1e3, 2),
        "median_us": round(statistics.median(each.total for each in handoffs) / 1e3, 2),
    }
    for part in PARTS:
        times = [time for each in handoffs if (time := getattr(each, part)) is not None]
        if times:
            row[f"{part}_us"] = round(statistics.median(times) / 1e3, 2)
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text."""
    names = ("from", "to", "work_us", "host", "min_us", "median_us", *(f"{part}_us" for part in PARTS))
    lines = [names, *(tuple(str(row.get(name, "")) for name in names) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    left = (0, 1, 3)
    return "\n".join(
        "  ".join(
            c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


if __name__ == "__main__":
    main()
