"""Compiles the graphs that TorchDynamo captures: ``torch.compile(model, backend="mansard")``."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import mansard
from mansard.errors import CompileError, ShapeContractError
from mansard.torch_compile.captured import CapturedGraph, separate

_MOST_SHAPES = 16
"""Sets of shapes that a graph is compiled for beside the one with varying sizes."""


def backend(
    captured: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> CompiledGraph:
    """A backend for ``torch.compile``: compiles one captured graph, for calls without gradients.

    ``options`` (``torch.compile(model, backend="mansard", options={"devices": "vulkan"})``) are keywords of
    `mansard.compile`. Weights become constants of the compiled model; where one has changed since, a call
    compiles again. Raises CompileError for unknown options, and for a graph whose result needs gradients.
    """
    chosen = dict(options or {})
    known = inspect.signature(mansard.compile).parameters.keys() - _NO_OPTIONS
    if unknown := sorted(chosen.keys() - known):
        raise CompileError(
            f"mansard.compile takes no option {unknown[0]!r}; it takes {', '.join(sorted(known))}"
        )
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise CompileError(
            "the backend mansard computes no gradients: call the compiled model under torch.no_grad() or "
            "torch.inference_mode()"
        )
    return CompiledGraph(captured, chosen)


_NO_OPTIONS = {
    "model", "example_inputs", "kwargs", "dynamic_shapes", "input_names", "frontend", "frontend_options",
    "dims", "constants", "start", "skip", "dump",
}  # fmt: skip
"""Parameters of `mansard.compile` that the backend gives, or that make no sense for it."""


class CompiledGraph:
    """A captured graph, compiled; called with all arguments that TorchDynamo passes, weights among them."""

    def __init__(self, captured: torch.fx.GraphModule, options: Mapping[str, Any]) -> None:
        self._captured, self._options = captured, options
        self._lock = threading.Lock()
        self._graph: CapturedGraph | None = None

    def __call__(self, *args: Any) -> Any:
        """The results of the graph, which the first call compiles: an export inside of TorchDynamo's tracing
        would change what that guards. Raises the errors of `mansard.compile` and of a call."""
        with self._lock:
            if self._graph is None or self._changed(self._graph, args):
                self._graph = self._build(args)
            graph, model = self._graph, self._model
        inputs = [args[number] for number in graph.inputs]
        try:
            return model(*inputs)
        except ShapeContractError:
            return self._for_shapes(graph, inputs)(*inputs)

    def _build(self, args: Sequence[Any]) -> CapturedGraph:
        graph = separate(self._captured, args)
        # An export leaves marks on its examples, which the guards of TorchDynamo would take for a change.
        inputs = tuple(args[number].detach().clone() for number in graph.inputs)
        shapes = graph.dynamic_shapes
        self._state = _state(graph, args)
        self._static: dict[tuple[torch.Size, ...], mansard.Model] = {}
        self._model = mansard.compile(
            graph.module, inputs, dynamic_shapes=shapes if any(shapes) else None, **self._options
        )
        return graph

    def _changed(self, graph: CapturedGraph, args: Sequence[Any]) -> bool:
        """Whether a weight was replaced or written to, or a number is another, since the compilation."""
        return _state(graph, args) != self._state

    def _for_shapes(self, graph: CapturedGraph, inputs: Sequence[torch.Tensor]) -> mansard.Model:
        """A model for just these sizes, which torch.export could not generalise to; a few are kept."""
        key = tuple(tensor.shape for tensor in inputs)
        with self._lock:
            if key not in self._static:
                if len(self._static) == _MOST_SHAPES:
                    del self._static[next(iter(self._static))]
                examples = tuple(tensor.detach().clone() for tensor in inputs)
                self._static[key] = mansard.compile(graph.module, examples, **self._options)
            return self._static[key]


def _state(graph: CapturedGraph, args: Sequence[Any]) -> list[Any]:
    return [*(_version(args[number]) for number in graph.weights), *(args[number] for number in graph.fixed)]


def _version(tensor: torch.Tensor) -> tuple[int, int]:
    """Changes when a tensor is replaced or written to; tensors of inference mode do not count writes."""
    return tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version
