"""The performance model: how long the simulated NPU takes, and how its clock relates to the real one."""

from __future__ import annotations

import importlib.resources
import os
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


def read_model(path: Path | None = None) -> Model:
    """The model in a TOML file, MANSARD_NPU_MODEL, or the one that ships with the plug-in.

    Raises InputError naming a key that is missing or unknown.
    """
    chosen = path or (Path(text) if (text := os.environ.get("MANSARD_NPU_MODEL")) else None)
    if chosen is None:
        raw = importlib.resources.files("mansard_npu").joinpath("npu.toml").read_text("utf-8")
    else:
        raw = chosen.read_text("utf-8")
    try:
        return Model(**tomllib.loads(raw))
    except (TypeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{chosen or 'npu.toml'} is no model of the simulated NPU: {error}") from error


@dataclass(frozen=True)
class Clock:
    """Simulated time: ``speed`` simulated seconds pass in a real one. infinity does not wait at all."""

    speed: float = 1.0

    def wait(self, start: float, seconds: float) -> None:
        """Sleep until ``seconds`` of simulated time have passed since ``start`` (`time.perf_counter`).

        Returns at once when computing has taken longer than that.
        """
        end = start + seconds / self.speed
        while (left := end - time.perf_counter()) > 0:
            time.sleep(left)
