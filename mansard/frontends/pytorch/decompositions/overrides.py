"""The overrides that PyTorch sets for each decomposition of a program, at a fraction of their cost.

``ExportedProgram.run_decompositions`` overrides every composite op of ATen, some 11,000 dispatch keys in all,
also for a program of one op. With PyTorch 2.13 most of the time of a small program goes into that:

* the kernels of an op are registered one by one (``composite_kernels`` sets them at once), and each defines a
  function whose annotations subscript ``collections.abc.Callable``, which looks through the parameters anew
  every time; ``typing.Callable`` remembers what it was subscripted with;
* composite ops are looked up in C++ once for each namespace of ops instead of once;
* whether an op of ATen may be overridden is found out for each op and decomposition.

A program of two ops is imported in 0.15 s of CPU time; with the kernels registered one by one it takes 0.33.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import typing
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mansard.frontends.pytorch.decompositions.composite_kernels import remembering


def _remembering_aten(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """The check, which asks once for each op of ATen; other ops may be defined anew."""
    answers: dict[Any, bool] = {}

    def checked(op: Any) -> bool:
        answer = answers.get(op)
        if answer is None:
            answer = check(op)
            if getattr(op, "namespace", "") == "aten":
                answers[op] = answer
        return answer

    return checked


_REPLACEMENTS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("torch._ops", "Callable", lambda _: typing.Callable),
    ("torch._export.utils", "_materialize_cpp_cia_ops", functools.cache),
    ("torch._export.utils", "_check_valid_to_preserve", functools.cache(_remembering_aten)),
    (
        "torch.export.exported_program",
        "_override_composite_implicit_decomp",
        functools.cache(remembering),
    ),
)
"""Module, name in it, and what gives its replacement. Those that are cached remember from one decomposition
to the next."""


class QuickOverrides:
    """While any thread is inside, overrides of composite ops are cheap; the last to leave restores what was
    replaced. No effect on versions of PyTorch without the names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._originals: list[tuple[ModuleType, str, Any]] = []

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                return
            for module_name, name, replacement in _REPLACEMENTS:
                with contextlib.suppress(ImportError, AttributeError):
                    module = importlib.import_module(module_name)
                    original = getattr(module, name)
                    setattr(module, name, replacement(original))
                    self._originals.append((module, name, original))

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside:
                return
            for module, name, original in self._originals:
                setattr(module, name, original)
            self._originals.clear()


QUICK_OVERRIDES = QuickOverrides()
"""The one of this process, as what it replaces is."""
