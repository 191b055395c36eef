"""Calibrations as a TOML file of device profiles, as `mansard simulate --profile` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard.calibration.device_figures import Calibration, Points
from mansard.targets.profile import LinkProfile


def to_toml(calibrations: Sequence[Calibration]) -> str:
    """The calibrations as a file for `mansard simulate --profile`: a table per device."""

    def tables(name: str, device_id: str) -> list[str]:
        """The tables of the devices with a name, of which there may be several."""
        return [c.device.id for c in calibrations if c.device.name == name and c.device.id != device_id] or [
            name
        ]

    lines = ['name = "measured"']
    for calibration in calibrations:
        profile = calibration.profile
        figures = {
            "bandwidth": profile.bandwidth,
            "write_bandwidth": profile.write_bandwidth,
            "cache_bandwidth": profile.cache_bandwidth,
            "cache_bytes": profile.cache_bytes,
            "launch": profile.launch,
            "link": profile.link.bytes_per_second,
            "handoff": profile.link.handoff_seconds,
            "start": profile.start,
            "concurrency": profile.concurrency,
        }
        links = {
            table: {"link": link.bytes_per_second, "handoff": link.handoff_seconds, **_copies(link)}
            for name, link in profile.links.items()
            for table in tables(name, calibration.device.id)
        }
        lines += [f'\n["{calibration.device.id}"]', f"# {profile.name}, measured {profile.measured}"]
        lines += [f"{key} = {_figure(value)}" for key, value in (figures | _copies(profile.link)).items()]
        if profile.launches:
            lines.append(f"launches = {_figure(profile.launches)}")
        if profile.cores:
            lines.append(f'cores = "{profile.cores}"')
        lines += [f"unified = {str(profile.unified).lower()}", f"rates = {_inline(profile.rates)}"]
        for key, sizes in (("small", profile.small), ("deep", profile.deep), ("kinds", profile.kinds)):
            points = (f"{d} = [{', '.join(map(_pair, rows))}]" for d, rows in sizes.items())
            lines += [f"{key} = {{ {', '.join(points)} }}"] * bool(sizes)
        shown = ", ".join(f'"{name}" = {_inline(link)}' for name, link in links.items())
        lines.append(f"links = {{ {shown} }}")
    return "\n".join(lines) + "\n"


def _copies(link: LinkProfile) -> dict[str, float | Points]:
    """The known figures of a link's copies."""
    known: dict[str, float | Points] = {"copy": link.copy_seconds, "host_copies": link.host_copies}
    return {key: value for key, value in known.items() if value}


def _inline(figures: Mapping[str, float | Points]) -> str:
    return f"{{ {', '.join(f'{key} = {_figure(value)}' for key, value in figures.items())} }}"


def _pair(point: tuple[float, float]) -> str:
    return f"[{_figure(point[0])}, {_figure(point[1])}]"


def _figure(value: float | Points) -> str:
    """Six significant digits, in TOML's syntax."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_pair, value))}]"
    return str(value) if isinstance(value, int) else f"{value:.6g}"
