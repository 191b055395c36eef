"""Chips as data: a profile per device, from a TOML file of one's own or a shipped one (data/socs/).

A file has a ``name`` and a table per device, called as the device slot of a model (``cpu``, ``vulkan``,
``vulkan:1``) or as its driver. Keys of a table are those of data/profiles.toml, and

* ``write_bandwidth``: bytes/s written to memory, where that is not ``bandwidth`` (optional);
* ``unified``: whether the device uses the host's memory (default true);
* ``memory``: bytes of it that a model may take (optional);
* ``efficiency``: the parts of ``bandwidth`` (all bandwidths) and of ``rates`` that kernels reach, so that
  the other figures can be those of a datasheet (default 1);
* ``small``: by element type ``[[operations, rate], ...]`` of dispatches too small for ``rates``, with their
  launch, the smallest first (optional);
* ``deep``: the same, of products with few results and deep sums (`DeviceProfile.deep`; optional);
* ``kinds``: the same by kind of work (`mansard.placement.kinds`) in f32 (optional);
* ``launches``: ``[[operations, seconds], ...]`` of the launches of small dispatches that take less than
  ``launch``, the smallest first (optional);
* ``cores``: a name for the cores that the device shares with others of that name (optional);
* ``start``: seconds from a call until the device begins (optional);
* ``concurrency``: how many small dispatches of several calls it does in the time of one (default 1);
* ``copy``: the fixed seconds of a copy over the link, and ``host_copies``: ``[[bytes,
  seconds], ...]`` of the host's own copies of inputs, where the device cannot use arrays (optional);
* ``drivers``: names of drivers that the table is for, beside its own name (optional);
* ``links``: by other table, or ``host``, ``{ link, handoff }`` of that way alone, with ``copy``, and ``host``
  with ``host_copies`` of outputs (optional).
"""

from __future__ import annotations

import difflib
import importlib.resources
import itertools
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mansard.errors import PlacementError
from mansard.targets.profile import KINDS, DeviceProfile, LinkProfile, profile_from

_REQUIRED = ("bandwidth", "cache_bandwidth", "cache_bytes", "rates", "launch", "handoff", "link")
_MAY_BE_ZERO = ("cache_bytes", "launch", "handoff")
_OPTIONAL = (
    "write_bandwidth",
    "unified",
    "memory",
    "efficiency",
    "links",
    "small",
    "deep",
    "kinds",
    "launches",
    "cores",
    "start",
    "concurrency",
    "copy",
    "host_copies",
    "drivers",
)
_COPIES = ("copy", "host_copies")


@dataclass(frozen=True)
class Soc:
    """A chip: the profile of every device, and the bytes of memory a model may take there, where known."""

    name: str
    devices: Mapping[str, DeviceProfile]
    memory: Mapping[str, int]
    drivers: Mapping[str, str] = field(default_factory=dict)
    """Tables by the drivers that they list."""

    def device(self, slot: str, driver: str) -> str:
        """The table for a device slot of a model: of its own name, else of its driver's, else one that lists
        the driver.

        Raises PlacementError naming the tables there are.
        """
        for name in (slot, driver):
            if name in self.devices:
                return name
        if driver in self.drivers:
            return self.drivers[driver]
        raise PlacementError(
            f"{self.name} has no device {slot!r}: add a table [{driver}]; it has {', '.join(self.devices)}"
        )


def shipped_socs() -> list[str]:
    """The names of the chips that Mansard knows."""
    folder = importlib.resources.files("mansard.targets").joinpath("data/socs")
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def load_soc(name: str) -> Soc:
    """A chip by the name of a shipped one, or from a TOML file.

    Raises PlacementError for an unknown name, a file that cannot be read, and for missing, unknown or
    impossible entries, naming them.
    """
    if name in shipped_socs():
        data = importlib.resources.files("mansard.targets").joinpath(f"data/socs/{name}.toml")
        return parse_soc(data.read_text("utf-8"), name)
    path = Path(name)
    if not path.is_file():
        raise PlacementError(f"{name!r} is neither a file nor one of the chips {', '.join(shipped_socs())}")
    try:
        return parse_soc(path.read_text("utf-8"), path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise PlacementError(f"{name} cannot be read: {error}") from error


def parse_soc(text: str, name: str) -> Soc:
    """A chip from the text of its TOML file; ``name`` is for files that have none. Errors as `load_soc`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlacementError(f"chip {name!r} is not valid TOML: {error}") from error
    title = str(data.pop("name", name))
    if not data:
        raise PlacementError(f"chip {title!r} has no device: add a table such as [cpu]")
    devices, limits = {}, {}
    drivers: dict[str, str] = {}
    for device, raw in data.items():
        if not isinstance(raw, dict):
            raise PlacementError(f"chip {title!r}: {device!r} is not a table")
        devices[device] = _device(f"{device} of {title}", device, raw)
        if "memory" in raw:
            limits[device] = int(_number(f"{device} of {title}", "memory", raw["memory"]))
        drivers |= dict.fromkeys(_texts(f"{device} of {title}", "drivers", raw.get("drivers", [])), device)
    return Soc(title, devices, limits, drivers)


def _device(where: str, name: str, raw: Mapping[str, Any]) -> DeviceProfile:
    _known(where, raw, (*_REQUIRED, *_OPTIONAL))
    missing = [key for key in _REQUIRED if key not in raw]
    if missing:
        raise PlacementError(f"{where} lacks {', '.join(map(repr, missing))}")
    rates = _table(where, "rates", raw["rates"])
    if "f32" not in rates:
        raise PlacementError(f"{where}: rates lack 'f32'")
    efficiency = _table(where, "efficiency", raw.get("efficiency", {}))
    _known(f"efficiency of {where}", efficiency, ("bandwidth", "rates"))
    moving, computing = (
        _number(where, f"efficiency.{key}", efficiency.get(key, 1.0)) for key in ("bandwidth", "rates")
    )
    figures = {
        **{key: _number(where, key, raw[key], key in _MAY_BE_ZERO) for key in _REQUIRED if key != "rates"},
        "rates": {dtype: _number(where, f"rates.{dtype}", rate) * computing for dtype, rate in rates.items()},
    }
    unified = raw.get("unified", True)
    if not isinstance(unified, bool):
        raise PlacementError(f"{where}: unified is {unified!r}, not true or false")
    figures["cores"] = str(raw.get("cores", ""))
    profile = profile_from(name, figures, 1.0, unified=unified)
    own_link = _link(where, {key: raw[key] for key in ("link", "handoff", *_COPIES) if key in raw})
    links = {
        other: _link(f"links.{other} of {where}", _table(where, f"links.{other}", link))
        for other, link in _table(where, "links", raw.get("links", {})).items()
    }
    return replace(
        profile,
        bandwidth=profile.bandwidth * moving,
        cache_bandwidth=profile.cache_bandwidth * moving,
        write_bandwidth=_number(where, "write_bandwidth", raw.get("write_bandwidth", 0), True) * moving,
        link=own_link,
        links=links,
        start=_number(where, "start", raw.get("start", 0), True),
        concurrency=max(1.0, _number(where, "concurrency", raw.get("concurrency", 1))),
        small=_sizes(where, "small", raw, computing),
        deep=_sizes(where, "deep", raw, computing),
        kinds=_kinds(where, raw, computing),
        launches=_points(f"launches of {where}", raw["launches"], 1.0, "seconds of a launch")
        if "launches" in raw
        else (),
    )


def _sizes(
    where: str, key: str, raw: Mapping[str, Any], scale: float
) -> dict[str, tuple[tuple[float, float], ...]]:
    """By element type the rates of a table of sizes."""
    table = _table(where, key, raw.get(key, {}))
    return {dtype: _points(f"{key}.{dtype} of {where}", rows, scale) for dtype, rows in table.items()}


def _kinds(where: str, raw: Mapping[str, Any], scale: float) -> dict[str, tuple[tuple[float, float], ...]]:
    """The rates of a table of kinds of work."""
    _known(f"kinds of {where}", _table(where, "kinds", raw.get("kinds", {})), KINDS)
    return _sizes(where, "kinds", raw, scale)


def _points(
    where: str, rows: object, scale: float, second: str = "operations per second"
) -> tuple[tuple[float, float], ...]:
    """Pairs of numbers, sorted by the first; only seconds may be zero."""
    first, zero = ("bytes", True) if second == "seconds" else ("operations", False)
    pairs = rows if isinstance(rows, list) else []
    if not pairs or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise PlacementError(f"{where} is {rows!r}, not a list of [{first}, {second}]")
    points = tuple((_number(where, first, a), _number(where, second, b, zero) * scale) for a, b in pairs)
    if any(first >= second for (first, _), (second, _) in itertools.pairwise(points)):
        raise PlacementError(f"{where}: sizes do not grow: {', '.join(str(size) for size, _ in points)}")
    return points


def _link(where: str, raw: Mapping[str, Any]) -> LinkProfile:
    _known(where, raw, ("link", "handoff", *_COPIES))
    if missing := [key for key in ("link", "handoff") if key not in raw]:
        raise PlacementError(f"{where} lacks {', '.join(map(repr, missing))}")
    return LinkProfile(
        _number(where, "link", raw["link"]),
        _number(where, "handoff", raw["handoff"], True),
        _number(where, "copy", raw.get("copy", 0), True),
        _points(f"host_copies of {where}", raw["host_copies"], 1.0, "seconds")
        if "host_copies" in raw
        else (),
    )


def _known(where: str, raw: Mapping[str, Any], keys: Iterable[str]) -> None:
    allowed = list(keys)
    for key in raw:
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(allowed)}"
            raise PlacementError(f"{where} has an unknown entry {key!r}{hint}")


def _table(where: str, key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PlacementError(f"{where}: {key} is {value!r}, not a table")
    return value


def _texts(where: str, key: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise PlacementError(f"{where}: {key} is {value!r}, not a list of texts")
    return value


def _number(where: str, key: str, value: object, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PlacementError(f"{where}: {key} is {value!r}, not a number")
    if not (0 < value < math.inf or (zero and value == 0)):
        raise PlacementError(f"{where}: {key} is {value!r}, not a number above zero")
    return value
