"""The frontend of StableHLO modules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.errors import ImportModelError
from mansard.frontends.frontend import Frontend, has_suffix
from mansard.frontends.stablehlo.dialect import is_stablehlo

if TYPE_CHECKING:
    from mansard.ir.graph import Graph


class StableHloFrontend(Frontend):
    """Options are those of `mansard.frontends.stablehlo.importer.import_stablehlo`."""

    name = "stablehlo"
    reads = "StableHLO (text, bytecode, a .mlir or .mlirbc file)"
    requires = "mansard[compile]"
    options = ("function", "input_names", "dims", "constants")

    def accepts(self, model: Any) -> bool:
        """A ``.mlir`` or ``.mlirbc`` file, text or bytes with ops of StableHLO."""
        if has_suffix(model, ".mlir", ".mlirbc"):
            return is_stablehlo(model)
        is_text = isinstance(model, str) and "\n" in model and "func.func" in model
        return (is_text or isinstance(model, (bytes, bytearray))) and is_stablehlo(model)

    def import_model(self, model: Any, example_inputs: Any = None, *, cache: bool, **options: Any) -> Graph:
        """Parse and import the module, which states its shapes."""
        from mansard.frontends.stablehlo.importer import import_stablehlo

        if example_inputs is not None:
            raise ImportModelError("a StableHLO module states its shapes; it takes no example inputs")
        source = Path(model) if has_suffix(model, ".mlir", ".mlirbc") else model
        return import_stablehlo(source, **options)


FRONTEND = StableHloFrontend()
