"""``mansard compile --report FILE``: what others need to see why a compilation failed, without weights."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mansard.atomic_write import replacing

Dump = Callable[[str, str], None]
PACKAGES = ("mansard", "numpy", "torch", "torch-mlir", "llvmlite", "onnx", "jax", "transformers", "highspy")
"""Packages whose versions decide what a compilation does."""


class BugReport:
    """Collects the texts of a compilation; a context manager that writes them when it ends, also by an error.

    The file is a zip archive: ``report.json`` (versions, devices, options, stages with their seconds, the
    error), ``error.txt`` (its traceback) and ``NNN-PASS.mir``, the IR before and after each pass that changed
    it. Weights are not in it: the IR names them.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self.path = path
        self._options = {name: _shown(value) for name, value in options.items()}
        self._texts: list[tuple[str, str]] = []
        self._stages: dict[str, float] = {}
        self._begin = time.monotonic()

    def dumping(self, dump: Dump | None) -> Dump:
        """What keeps the IR after each pass, and hands it to ``dump``. Code of kernels is not kept."""

        def write(name: str, text: str) -> None:
            if not name.startswith(("kernels-", "code-")):
                self._texts.append((name, text))
            if dump is not None:
                dump(name, text)

        return write

    def progress(self, stage: str) -> None:
        """Note when a stage was reached."""
        self._stages.setdefault(stage, round(time.monotonic() - self._begin, 3))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        record = {
            "error": None if error is None else f"{type(error).__name__}: {error}",
            "stages": self._stages,
            "options": self._options,
            "versions": _versions(),
            "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
            "devices": _devices(),
        }
        with replacing(self.path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("report.json", json.dumps(record, indent=1))
            if error is not None:
                archive.writestr("error.txt", "".join(traceback.format_exception(error)))
            for number, (name, text) in enumerate(self._texts):
                archive.writestr(f"{number:03}-{name}.mir", text)


def _shown(value: Any) -> str:
    """An option as text; of tensors and modules what they are."""
    if isinstance(value, (str, int, float, bool, type(None), Path)):
        return str(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{tuple(value.shape)} {value.dtype}"
    if isinstance(value, Mapping):
        return str({str(name): _shown(item) for name, item in value.items()})
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    text = str(value) if type(value).__module__.startswith("mansard") else type(value).__qualname__
    return text[:1000]


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _devices() -> list[dict[str, str]]:
    from mansard.hal import registry

    return [
        {
            "id": info.id, "name": info.name, "driver version": info.driver_version, "target": info.target,
            "refused": "; ".join(info.reasons),
        }
        for info in registry.devices()
    ]  # fmt: skip
