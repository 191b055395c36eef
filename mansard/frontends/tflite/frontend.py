"""The frontend of LiteRT's ``.tflite`` models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mansard.errors import ImportModelError
from mansard.frontends.frontend import Frontend, has_suffix

if TYPE_CHECKING:
    from mansard.ir.graph import Graph


class TfliteFrontend(Frontend):
    """Options are those of `mansard.frontends.tflite.importer.import_tflite`."""

    name = "tflite"
    reads = "LiteRT (.tflite file, its bytes)"
    requires = "mansard[compile]"
    options = ("dims", "constants", "signature")

    def accepts(self, model: Any) -> bool:
        """A ``.tflite`` file, or the bytes of one."""
        return has_suffix(model, ".tflite") or (
            isinstance(model, (bytes, bytearray)) and bytes(model[4:8]) == b"TFL3"
        )

    def import_model(self, model: Any, example_inputs: Any = None, *, cache: bool, **options: Any) -> Graph:
        """Read and import the model, which states its shapes."""
        from mansard.frontends.tflite.importer import import_tflite

        if example_inputs is not None:
            raise ImportModelError(
                "a .tflite model states its shapes; it takes no example inputs (dims={'x_0': 4} fixes a "
                "symbolic dim)"
            )
        return import_tflite(model, **options)


FRONTEND = TfliteFrontend()
