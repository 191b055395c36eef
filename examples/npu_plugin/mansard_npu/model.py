"""The performance model: how long a simulated NPU takes for a call or a copy, by figures in a TOML file."""

from __future__ import annotations

import importlib.resources
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.errors import InputError


@dataclass(frozen=True)
class Model:
    """Rates of the NPU: bytes, bytes per second, operations per second, seconds."""

    name: str
    memory: int
    unified: bool
    bandwidth: float
    link: float
    launch: float
    handoff: float
    vector: float
    rates: Mapping[str, float]

    def call_seconds(self, dtype: str, products: float, others: float, moved: float) -> float:
        """Seconds of a function call: the roofline of its arithmetic and its memory, and the launch.

        ``products`` are operations on numbers of ``dtype``, ``others`` operations of the vector unit,
        ``moved`` bytes read and written.
        """
        arithmetic = products / self.rates[dtype] if products else 0.0
        return self.launch + max(arithmetic + others / self.vector, moved / self.bandwidth)

    def copy_seconds(self, size: int, crosses: bool) -> float:
        """Seconds of a copy: over the link when it ``crosses`` to the host's memory."""
        return size / (self.link if crosses and not self.unified else self.bandwidth)


def read_models(paths: Sequence[Path] = (), count: int | None = None) -> tuple[Model, ...]:
    """The models of the simulated NPUs, one for each.

    ``paths`` are TOML files, or names of those that ship with the plug-in (``npu``, ``realtime``); without
    any, those that MANSARD_NPU_MODEL lists (with commas), else ``npu``. Each file makes as many NPUs as its
    ``instances`` says, 1 without; its tables ``[instance.1]`` and so on change figures for one of them,
    counted from 0. ``count``, else MANSARD_NPU_COUNT, says how many there are in all: more than the files
    make are like the last one.

    Raises InputError naming a key that is missing or unknown, or a count that is wrong.
    """
    listed = os.environ.get("MANSARD_NPU_MODEL") or "npu"
    chosen = [*paths] or [Path(text) for text in listed.split(",") if text]
    models = [model for path in chosen for model in _models(str(path), _read(path))]
    wanted = _count(count)
    if wanted is None:
        return tuple(models)
    return tuple(models[:wanted] + models[-1:] * (wanted - len(models)))


def _read(path: Path) -> str:
    shipped = importlib.resources.files("mansard_npu").joinpath(f"{path}.toml")
    try:
        return (
            shipped.read_text("utf-8")
            if path.name == str(path) and not path.suffix
            else path.read_text("utf-8")
        )
    except OSError as error:
        raise InputError(f"no model of the simulated NPU can be read from {path}: {error}") from error


def _models(name: str, text: str) -> list[Model]:
    try:
        raw: dict[str, Any] = tomllib.loads(text)
        changes = {int(number): table for number, table in raw.pop("instance", {}).items()}
        instances = raw.pop("instances", max(1, 1 + max(changes, default=0)))
        models = []
        for number in range(instances):
            changed = {**raw, **changes.get(number, {})}
            changed["rates"] = {**raw["rates"], **changed["rates"]}
            models.append(Model(**changed))
    except (TypeError, ValueError, KeyError, AttributeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{name} is no model of the simulated NPU: {error}") from error
    if not models:
        raise InputError(f"{name} is no model of the simulated NPU: instances = {instances}, not 1 or more")
    return models


def _count(given: int | None) -> int | None:
    text = os.environ.get("MANSARD_NPU_COUNT")
    if given is None and not text:
        return None
    try:
        count = int(text or 0) if given is None else given
    except ValueError:
        count = 0
    if count < 1:
        raise InputError(f"number of simulated NPUs: {text if given is None else given!r} is not 1 or more")
    return count
