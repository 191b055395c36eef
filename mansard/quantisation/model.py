"""What `mansard.quantize` returns for a float model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mansard.api.quantization import QuantizationReport
    from mansard.ir.graph import Graph


@dataclass(frozen=True, eq=False)
class QuantizedModel:
    """A model on integers, to be compiled for any target: ``mansard.compile(quantised, devices="cpu")``."""

    graph: Graph
    report: QuantizationReport

    def __str__(self) -> str:
        return str(self.report)

    def __repr__(self) -> str:
        return f"<mansard.QuantizedModel {self.graph.name!r}, {self.report.scheme}>"
