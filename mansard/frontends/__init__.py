"""Frontends: each turns one kind of model into a Graph.

`import_model` picks the frontend by what it is given; a framework is imported only when its model is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.errors import ImportModelError

if TYPE_CHECKING:
    from mansard.ir.graph import Graph

__all__ = ["import_model"]


@dataclass(frozen=True)
class Frontend:
    """``accepts`` decides without importing the framework; ``load`` runs the frontend."""

    what: str
    accepts: Callable[[Any], bool]
    load: Callable[..., Graph]


def import_model(model: Any, example_inputs: Any = None, *, cache: bool = False, **options: Any) -> Graph:
    """Import a model of any supported kind as a Graph.

    ``example_inputs`` (a tensor or a sequence) are what a frontend that traces needs; kinds that state
    their shapes themselves take None. ``options`` go to the frontend:
    `mansard.frontends.pytorch.import_torch` for PyTorch models, `mansard.frontends.linalg.import_mlir`
    for MLIR. ``cache`` lets a frontend whose work takes long keep its result on disk. Raises
    ImportModelError for a model of a kind that no frontend reads.
    """
    for frontend in _FRONTENDS:
        if frontend.accepts(model):
            return frontend.load(model, example_inputs, cache, **options)
    known = "; ".join(f.what for f in _FRONTENDS)
    shown = repr(str(model)[:80]) if isinstance(model, (str, Path)) else type(model).__name__
    raise ImportModelError(f"no frontend reads {shown}; supported: {known}")


def _is_torch(model: Any) -> bool:
    """A module or an exported program, told by the names of its classes."""
    names = {f"{c.__module__}.{c.__qualname__}" for c in type(model).__mro__}
    return bool(
        names & {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"}
    ) or _has_suffix(model, ".pt2")


def _has_suffix(model: Any, *suffixes: str) -> bool:
    is_path = isinstance(model, Path) or (isinstance(model, str) and "\n" not in model)
    return is_path and Path(model).suffix in suffixes


def _is_mlir(model: Any) -> bool:
    return _has_suffix(model, ".mlir") or (isinstance(model, str) and "func.func" in model)


def _load_torch(model: Any, example_inputs: Any, cache: bool, **options: Any) -> Graph:
    try:
        from mansard.frontends.pytorch import import_torch
    except ImportError as error:
        raise ImportModelError(f"reading a PyTorch model needs torch: {error}") from error
    return import_torch(model, example_inputs, cache=cache, **options)


def _load_mlir(model: Any, example_inputs: Any, _cache: bool, **options: Any) -> Graph:
    from mansard.frontends.linalg import import_mlir

    if example_inputs is not None:
        raise ImportModelError("an MLIR module states its shapes; it takes no example inputs")
    return import_mlir(Path(model) if _has_suffix(model, ".mlir") else model, **options)


_FRONTENDS = (
    Frontend("PyTorch (torch.nn.Module, torch.export.ExportedProgram, .pt2 file)", _is_torch, _load_torch),
    Frontend("linalg-on-tensors MLIR (text, or a .mlir file)", _is_mlir, _load_mlir),
)
