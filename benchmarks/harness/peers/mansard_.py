"""Mansard: compiled by `mansard.compile`, saved, and run by the runtime alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case, first
from benchmarks.harness.peers.base import Call, Peer


class Mansard(Peer):
    name = "mansard"
    packages = ("mansard",)
    cache_variable = "MANSARD_CACHE_DIR"
    reads_onnx = True
    recompiles = True
    options: dict[str, Any] = {}  # noqa: RUF012  # never written

    def environment(self, threads: int) -> dict[str, str]:
        return {"MANSARD_NUM_THREADS": str(threads)}

    def imports(self) -> None:
        import mansard.api
        import mansard.drivers.cpu.driver  # noqa: F401  # loading a model would import it

    def build(self, case: Case, module: Any, args: tuple[Any, ...], place: Path) -> None:
        import mansard

        examples = () if isinstance(module, Path) else (args,)
        mansard.compile(module, *examples, devices="cpu", **self.options).save(place / "model.mansard")

    def files(self, case: Case, place: Path, work: Path) -> list[Path]:
        return [place / "model.mansard"]

    def load(self, case: Case, place: Path, work: Path, arrays: list[np.ndarray], threads: int) -> Call:
        import mansard

        if case.dtype == "bfloat16":
            import ml_dtypes

            arrays = [a.astype(ml_dtypes.bfloat16) if a.dtype == np.float32 else a for a in arrays]
        self._model = mansard.load(place / "model.mansard", devices=["cpu"])
        model = self._model
        return lambda: np.asarray(first(model(*arrays)))

    def details(self) -> dict[str, float]:
        """What the model holds by use (``weights_mb`` and so on), the least its activations could take
        (``activations_bound_mb``), and the number of its dispatches."""
        held: dict[str, float] = {"dispatches": sum(self._model.explain().totals.values())}
        for row in self._model.memory():
            amounts = {row.what: row.bytes if row.held else 0, f"{row.what}_bound": row.lower_bound or 0}
            for name, amount in amounts.items():
                if amount:
                    held[f"{name}_mb"] = held.get(f"{name}_mb", 0.0) + amount / 1e6
        return held


class MansardBf16(Mansard):
    """Asked for bfloat16 arithmetic."""

    name = "mansard-bf16"
    options = {"precision": "bf16"}  # noqa: RUF012

    def refusal(self, case: Case) -> str | None:
        return None if case.dtype == "float32" else f"{case.name} is not in float32"
