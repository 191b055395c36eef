"""The frontend of linalg-on-tensors MLIR."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.errors import ImportModelError
from mansard.frontends.frontend import Frontend, has_suffix
from mansard.frontends.stablehlo.dialect import is_stablehlo

if TYPE_CHECKING:
    from mansard.ir.graph import Graph


class LinalgFrontend(Frontend):
    """Options are those of `mansard.frontends.linalg.module.import_mlir`."""

    name = "linalg"
    reads = "linalg-on-tensors MLIR (text, or a .mlir file)"
    requires = "mansard[compile]"
    options = ("function", "input_names", "dims", "constants")

    def accepts(self, model: Any) -> bool:
        """A ``.mlir`` file, or text with a function, without ops of StableHLO."""
        is_mlir = has_suffix(model, ".mlir") or (isinstance(model, str) and "func.func" in model)
        return is_mlir and not is_stablehlo(model)

    def import_model(self, model: Any, example_inputs: Any = None, *, cache: bool, **options: Any) -> Graph:
        """Parse and import the module, which states its shapes."""
        from mansard.frontends.linalg.module import import_mlir

        if example_inputs is not None:
            raise ImportModelError("an MLIR module states its shapes; it takes no example inputs")
        return import_mlir(Path(model) if has_suffix(model, ".mlir") else model, **options)


FRONTEND = LinalgFrontend()
