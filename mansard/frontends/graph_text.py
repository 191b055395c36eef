"""The frontend of Graphs: printed ones, as dumps have them (``.mir`` files, edited or not), and objects.

Dumped constants have no data in the text: it comes from a safetensors file (`mansard.ir.graph_file`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.errors import ImportModelError
from mansard.frontends.frontend import Frontend, has_base, has_suffix

if TYPE_CHECKING:
    from mansard.ir.graph import Graph


_HOLDERS = ("mansard.quantisation.model.QuantizedModel",)
"""Classes above this layer whose objects have a Graph as ``graph``."""


class GraphTextFrontend(Frontend):
    """``weights`` is its option: the safetensors file, instead of that beside the ``.mir`` file."""

    name = "mir"
    reads = "a Graph (printed, as text or a .mir file, or what mansard.quantize returns)"

    def accepts(self, model: Any) -> bool:
        """A ``.mir`` file, text that begins like a printed Graph, a Graph, or a quantised model."""
        if has_base(model, "mansard.ir.graph.Graph", *_HOLDERS):
            return True
        return has_suffix(model, ".mir") or (isinstance(model, str) and model.lstrip().startswith("graph "))

    def import_model(
        self,
        model: Any,
        example_inputs: Any = None,
        *,
        cache: bool,  # to parse is quicker than to look up
        weights: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Graph:
        """Parse, bind weights and verify."""
        from mansard.ir.graph_file import bind_weights, read_graph
        from mansard.ir.parser import parse_graph

        if example_inputs is not None:
            raise ImportModelError("a Graph states its shapes; it takes no example inputs")
        if options:
            raise ImportModelError(f"a Graph takes no option {', '.join(options)}; printed, it takes weights")
        if has_base(model, *_HOLDERS):
            model = model.graph
        if has_base(model, "mansard.ir.graph.Graph"):
            if weights is not None:
                raise ImportModelError("weights are for a printed Graph; this one has its own")
            return model  # type: ignore[no-any-return]
        file = None if weights is None else Path(weights)
        if has_suffix(model, ".mir"):
            return read_graph(Path(model), file)
        return bind_weights(parse_graph(model), file, "the graph")


FRONTEND = GraphTextFrontend()
