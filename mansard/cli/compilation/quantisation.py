"""``--quantize`` and what refines it: weights alone, or a model with calibration data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.output import Output
from mansard.cli.progress import progress_bar
from mansard.cli.sources import Keywords

if TYPE_CHECKING:
    from mansard.passes.products.quantisation import Quantisation

GroupSizeOption = Annotated[
    int | None,
    typer.Option(
        "--group-size",
        metavar="N",
        help="With --quantize, weights of a row with one scale; 0: all. 32 for int4, 0 for int8.",
    ),
]
QuantizeActivationsOption = Annotated[
    bool,
    typer.Option(
        "--quantize-activations", help="With --quantize, round what weights are multiplied with to int8."
    ),
]
FRONTEND = ("model", "example_inputs", "dynamic_shapes", "dims", "input_names", "frontend_options", "cache")
"""Keywords of `mansard.compile` that say how a model is imported."""


@dataclass(frozen=True)
class QuantizeOptions:
    """The options of the command line."""

    kind: str | None
    group_size: int | None
    keep: Sequence[str]
    zero_points: bool
    activations: bool
    calibration: Path | None
    ranges: str | None
    budget: float | None
    smoothing: float | None

    def apply(self, out: Output, keywords: Keywords) -> None:
        """Quantise the model of ``keywords``, or tell it how to store weights."""
        weights = (self.group_size is not None, self.zero_points, self.activations)
        if self.kind is None and (any(weights) or self.keep or self.calibration is not None):
            raise typer.BadParameter(
                "--group-size, --zero-points, --quantize-activations, --keep-weights and --calibration "
                "refine --quantize"
            )
        if self.calibration is None:
            if any(given is not None for given in (self.ranges, self.budget, self.smoothing)):
                raise typer.BadParameter("--ranges, --budget and --smoothing are for --calibration")
            keywords["quantize"] = self._weights()
            return
        if any(weights):
            raise typer.BadParameter(
                "--group-size, --zero-points and --quantize-activations: not with --calibration"
            )
        self._calibrated(out, keywords, _read(self.calibration))

    def _weights(self) -> Quantisation | None:
        import mansard

        if self.kind is None:
            return None
        return mansard.quantize(
            self.kind,
            group_size=self.group_size,
            symmetric=not self.zero_points,
            activations="int8" if self.activations else None,
            keep=tuple(self.keep),
        )

    def _calibrated(self, out: Output, keywords: Keywords, data: Mapping[str, Any]) -> None:
        import mansard

        given = {"ranges": self.ranges, "budget": self.budget, "smoothing": self.smoothing}
        refined: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        source = {name: keywords.pop(name) for name in FRONTEND if name in keywords}
        with progress_bar() as progress:
            quantised = mansard.quantize(
                source.pop("model"),
                data,
                str(self.kind),
                keep=tuple(self.keep),
                progress=progress,
                **refined,
                **source,
            )
        out.show(str(quantised))
        keywords |= {"model": quantised, "cache": source.get("cache", True)}


def _read(path: Path) -> Mapping[str, Any]:
    """The arrays of a .npz file, or the one of a .npy file."""
    import numpy as np

    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--calibration {path} is no .npz file of arrays: {error}") from error
    return {"arr_0": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
