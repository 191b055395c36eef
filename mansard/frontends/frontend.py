"""The contract of a frontend.

A package provides one by an entry point in the group ``mansard.frontends`` that refers to a `Frontend`
object::

    [project.entry-points."mansard.frontends"]
    onnx = "my_package.frontend:FRONTEND"

The object's module is imported for every model that is compiled, so it must not import a framework:
`Frontend.accepts` decides by suffixes and class names, `Frontend.import_model` imports what it needs.
"""

from __future__ import annotations

import abc
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mansard.ir.graph import Graph


class Frontend(abc.ABC):
    """Turns models of one kind into a Graph."""

    name: str
    """Short and unique: ``pytorch``."""
    reads: str
    """The models it accepts, for messages: ``PyTorch (torch.nn.Module, .pt2 file)``."""
    requires: str = ""
    """The requirement to install for it, in pip's syntax: ``mansard[torch]``. Empty: none."""

    options: tuple[str, ...] | None = None
    """The keywords that `import_model` takes besides; others are refused. None: it refuses them itself."""

    @abc.abstractmethod
    def accepts(self, model: Any) -> bool:
        """Whether ``model`` (an object, a path or a text) is of this kind. Must not import a framework."""

    def traces(self, model: Any) -> bool:  # for those that do
        """Whether it calls ``model`` with example inputs to see what it computes."""
        return False

    @abc.abstractmethod
    def import_model(self, model: Any, example_inputs: Any = None, *, cache: bool, **options: Any) -> Graph:
        """Import ``model``, for which `accepts` returned True, as a verified Graph.

        ``example_inputs`` is a tensor or a sequence of them for frontends that trace, else None. ``cache``
        permits caching the result on disk (`mansard.cache`). ``options`` are the caller's keywords for this
        frontend. Raises ImportModelError for a model that cannot be read and UnsupportedOpError for an op
        without a lowering; an ImportError is reported with `requires`.
        """


def has_suffix(model: Any, *suffixes: str) -> bool:
    """Whether ``model`` is the path of a file with one of the suffixes."""
    is_path = isinstance(model, Path) or (isinstance(model, str) and "\n" not in model)
    return is_path and Path(model).suffix in suffixes


def has_base(model: Any, *classes: str) -> bool:
    """Whether the class of ``model``, or one of its bases, has one of the qualified names."""
    names = {f"{c.__module__}.{c.__qualname__}" for c in type(model).__mro__}
    return not names.isdisjoint(classes)
