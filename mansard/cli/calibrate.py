"""``mansard calibrate``: measure this machine's devices and store the figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.output import JsonOption, Output, si
from mansard.cli.progress import progress_bar
from mansard.cli.tune import parse_duration

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.calibration import Calibration
    from mansard.hal import DeviceInfo


def calibrate(
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device", metavar="DEVICE", help="A device to measure. Default: every device that computes."
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="How long to measure each device.")
    ] = "5s",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="TOML", help="Also write a file for `mansard simulate --profile`."
        ),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove all measured figures, and exit.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure bandwidths, rates, launches and links of devices; placement uses the figures from then on.

    They are stored by driver, device and driver version.
    """
    from mansard.targets import calibrated

    with Output(as_json) as out:
        if forget:
            calibrated.forget()
            out.show("calibrations removed: placement uses shipped profiles")
            out.result({"devices": []})
            return
        from mansard.calibration import to_toml
        from mansard.calibration.measure import calibrate as measure

        seconds = parse_duration(budget)
        with progress_bar() as progress:
            calibrations = measure(device or present(), seconds, progress)
        if output is not None:
            write(output, to_toml(calibrations))
        for result in calibrations:
            out.show(f"{result.device.id}: {result.device.name}")
            out.show(figure_table(result))
            for figure, reason in result.missing.items():
                out.note(f"{result.device.id}: {figure} not measured: {reason}")
        skipped = simulated(device)
        for info in skipped:
            out.note(f"{info.id}: {info.name} is {info.kind}: its profile is its model, nothing was measured")
        out.result(
            {
                "devices": [describe(result) for result in calibrations],
                "simulated": [info.id for info in skipped],
            }
        )


def present() -> list[str]:
    """The usable devices of this machine that compute."""
    from mansard.hal import registry

    return [info.id for info in registry.devices() if info.supported and not info.is_stand_in]


def simulated(names: Sequence[str] | None) -> list[DeviceInfo]:
    """The simulated devices among the named ones, or on this machine, which `calibrate` skips."""
    from mansard.hal import registry

    infos = [registry.open_device(name).info for name in names] if names else registry.devices()
    return [info for info in infos if info.is_stand_in]


def write(path: Path, text: str) -> None:
    """Write a file; raises typer.BadParameter when it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}") from None


def describe(result: Calibration) -> dict[str, Any]:
    """A calibration as in the JSON output."""
    return {
        "id": result.device.id,
        "name": result.device.name,
        "driver_version": result.device.driver_version,
        "calibrated": result.profile.measured,
        "profile": dataclasses.asdict(result.profile),
        "shipped": dataclasses.asdict(result.shipped),
        "missing": result.missing,
    }


def figure_table(result: Calibration) -> Table:
    """A row per figure: measured, and as shipped."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("figure", "measured", "shipped"):
        table.add_column(title, justify="left" if title == "figure" else "right")
    for row in figure_rows(result):
        table.add_row(*row)
    return table


def figure_rows(result: Calibration) -> Sequence[tuple[str, str, str]]:
    """Name, measured value and shipped value of every figure, as text."""
    profile, shipped, missing = result.profile, result.shipped, result.missing
    figures = [
        ("bandwidth", si(profile.bandwidth, "B/s"), si(shipped.bandwidth, "B/s")),
        (
            "write_bandwidth",
            si(profile.write_bandwidth or profile.bandwidth, "B/s"),
            si(shipped.write_bandwidth or shipped.bandwidth, "B/s"),
        ),
        ("cache_bandwidth", si(profile.cache_bandwidth, "B/s"), si(shipped.cache_bandwidth, "B/s")),
        *(
            (f"rates.{dtype}", si(profile.rate(dtype), "op/s"), si(shipped.rate(dtype), "op/s"))
            for dtype in ("f32", "f16", "bf16", "i8")
        ),
        ("launch", _micro(profile.launch), _micro(shipped.launch)),
    ]
    rows = [(name, "" if name in missing else measured, default) for name, measured, default in figures]
    rows.append(("start", "" if "start" in missing else _micro(profile.start), _micro(shipped.start)))
    link = profile.link.bytes_per_second
    rows.append(("from host", si(link, "B/s"), si(shipped.link.bytes_per_second, "B/s")))
    for name, link_profile in profile.links.items():
        shown = f"{si(link_profile.bytes_per_second, 'B/s')}, {_micro(link_profile.handoff_seconds)}"
        default = f"{si(shipped.link.bytes_per_second, 'B/s')}, {_micro(shipped.link.handoff_seconds)}"
        rows.append((f"to {name}", shown, default))
    return rows


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"
