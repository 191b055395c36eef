"""What quantisation did to a model: errors by layer, agreement of the outputs, sizes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.errors import ArtifactError
from mansard.plan.plan import Plan

REPORT = "quantisation report"
"""The entry of `Plan.info` with the report."""
WIDEST = 60
"""Characters of a layer's name in a table."""


@dataclass(frozen=True)
class LayerReport:
    """One product of the model, with its bias and clamp."""

    name: str
    precision: str
    """``int8``, ``int16`` (16-bit inputs, 8-bit weights) or ``float``."""
    operations: int
    """Multiply-adds of a call with the smallest sizes."""
    error: float
    """Relative L2 distance of its result from the float model's, with all before it quantised."""
    sensitivity: float | None = None
    """Relative L2 distance of the model's outputs when nothing else is quantised; None: not measured."""
    reason: str = ""
    """Why it is not int8."""

    @property
    def sqnr(self) -> float:
        """Signal to quantisation noise in dB."""
        return math.inf if self.error == 0 else -20 * math.log10(self.error)


@dataclass(frozen=True)
class QuantizationReport:
    """`mansard.quantize`'s account of its result; ``print`` shows a table."""

    scheme: str
    ranges: str
    samples: int
    """Samples of the calibration data."""
    layers: tuple[LayerReport, ...]
    error: float
    """Relative L2 distance of the outputs from the float model's, over the calibration data."""
    agreement: float | None
    """Part of the rows of the first output whose largest element is the same; None without such rows."""
    wide_values: int
    """Values between layers that are wider than 8 bits, as ``mixed`` chose."""
    float_bytes: int
    """Bytes of the float model's constants."""
    bytes: int
    """Bytes of the quantised model's constants."""
    smoothing: float | None = None
    """How far scales of channels were moved into constants; None: not at all."""
    smoothed: int = 0
    """Sets of values that share such scales."""

    @property
    def operations(self) -> dict[str, float]:
        """The part of the multiply-adds at each precision."""
        total = sum(layer.operations for layer in self.layers) or 1
        kinds = dict.fromkeys(layer.precision for layer in self.layers)
        return {k: sum(x.operations for x in self.layers if x.precision == k) / total for k in kinds}

    def to_json(self) -> str:
        """As text, for `from_json`."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> QuantizationReport:
        """The opposite of `to_json`."""
        data = json.loads(text)
        return QuantizationReport(**{**data, "layers": tuple(LayerReport(**x) for x in data["layers"])})

    def __str__(self) -> str:
        sensitive = any(layer.sensitivity is not None for layer in self.layers)
        head = ["layer", "precision", "Mmac", "error", "SQNR dB", *(["alone"] if sensitive else []), ""]
        rows = [_row(layer, sensitive=sensitive) for layer in self.layers]
        parts = ", ".join(f"{part:.1%} {kind}" for kind, part in self.operations.items())
        wide = f", {self.wide_values} wide values between layers" if self.wide_values else ""
        moved = (
            ""
            if self.smoothing is None
            else f", smoothing {self.smoothing:g} of {self.smoothed} sets of values"
        )
        agreement = "" if self.agreement is None else f", top-1 agreement {self.agreement:.1%}"
        return "\n".join(
            (
                *_table([head, *rows]),
                f"{self.scheme}, ranges {self.ranges}, {self.samples} samples{moved}; "
                f"multiply-adds: {parts}{wide}",
                f"outputs: relative error {self.error:.4f}{agreement}; "
                f"weights {self.float_bytes / 1e6:.2f} MB -> {self.bytes / 1e6:.2f} MB",
            )
        )


def report_of(plan: Plan) -> QuantizationReport | None:
    """The report in a plan's info; None where there is none. Raises ArtifactError for one that is none."""
    text = plan.info.get(REPORT)
    if text is None:
        return None
    try:
        return QuantizationReport.from_json(text)
    except (ValueError, TypeError, KeyError) as error:
        raise ArtifactError(f"the model's quantisation report cannot be read: {error}") from error


def _row(layer: LayerReport, *, sensitive: bool) -> list[str]:
    name = layer.name if len(layer.name) <= WIDEST else f"…{layer.name[1 - WIDEST :]}"
    alone = [] if not sensitive else ["" if layer.sensitivity is None else f"{layer.sensitivity:.4f}"]
    figures = [f"{layer.operations / 1e6:.2f}", f"{layer.error:.4f}", f"{layer.sqnr:.1f}", *alone]
    return [name, layer.precision, *figures, layer.reason]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns as wide as needed: texts to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if i in (0, 1, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
