"""Running MLIR's parser and pass pipelines, in whichever process this is.

The bindings come with the ``torch-mlir`` wheel, which also has the upstream dialects. The worker process
imports this module, which therefore imports neither NumPy nor torch itself.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.errors import ImportModelError

_LOADS_TM_TENSOR = "func.func(convert-torch-to-tmtensor)"
_LOADS_CHLO = "func.func(stablehlo-complex-math-expander)"
_PORTABLE = b"StableHLO_v"
"""How the producer's name of a portable StableHLO artifact begins, at the head of its bytecode."""


def new_context() -> Any:
    """An MLIR context with every dialect that a model may use registered.

    Ops of others are parsed in their generic form, so that they can be named.
    """
    try:
        with _symbols_of_its_own():
            from torch_mlir import ir
            from torch_mlir._mlir_libs import _stablehlo
            from torch_mlir.dialects import torch as torch_dialect
    except ImportError as error:
        raise ImportModelError(
            "importing a model needs torch-mlir; install mansard with its compile extra: "
            "pip install 'mansard[compile]'"
        ) from error
    context = ir.Context()
    context.allow_unregistered_dialects = True
    torch_dialect.register_dialect(context)
    _stablehlo.register_dialect(context)
    _stablehlo.register_stablehlo_passes()
    return context


@contextlib.contextmanager
def _symbols_of_its_own() -> Iterator[None]:
    """Libraries loaded here prefer their own symbols to those of TensorFlow, which exports another LLVM's."""
    if "tensorflow" not in sys.modules or not hasattr(os, "RTLD_DEEPBIND"):
        yield
        return
    before = sys.getdlopenflags()
    sys.setdlopenflags(before | os.RTLD_DEEPBIND)
    try:
        yield
    finally:
        sys.setdlopenflags(before)


@dataclass(frozen=True)
class Diagnostic:
    """One error that MLIR reported: the message, the op's location, and the text of attached notes."""

    message: str
    location: str
    notes: str = ""

    @property
    def no_lowering(self) -> str:
        """The sentence for an op that torch-mlir could not legalise, without the dump of the op."""
        reason = self.message.splitlines()[0].split(": %")[0]
        return (
            "torch-mlir has no lowering for this op, or not for these operand types and attributes "
            f"({reason})"
        )


class PipelineError(Exception):
    """The parser (``parsed`` is False) or a pass pipeline failed, for the reasons in ``diagnostics``."""

    def __init__(self, diagnostics: Sequence[Diagnostic], parsed: bool = True) -> None:
        self.diagnostics, self.parsed = tuple(diagnostics), parsed
        super().__init__("; ".join(f"{d.message} ({d.location})" for d in diagnostics))


def parse(source: bytes, context: Any) -> Any:
    """A module from its text or bytecode, portable StableHLO among it.

    Raises PipelineError with MLIR's messages and positions.
    """
    from torch_mlir import ir

    if b"tm_tensor" in source:
        # The bindings cannot register this dialect; a pass that depends on it loads it.
        run_pipeline(ir.Module.parse("", context), _LOADS_TM_TENSOR)
    if b"chlo" in source:
        run_pipeline(ir.Module.parse("", context), _LOADS_CHLO)
    if _PORTABLE in source[:64]:
        return _portable(source, context)
    try:
        return ir.Module.parse(source, context)
    except ir.MLIRError as error:
        diagnostics = [_diagnostic(d) for d in error.error_diagnostics]
        raise PipelineError(diagnostics or [Diagnostic(str(error), "")], parsed=False) from error


def _portable(source: bytes, context: Any) -> Any:
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _stablehlo

    diagnostics: list[Diagnostic] = []

    def keep(diagnostic: Any) -> bool:
        diagnostics.append(_diagnostic(diagnostic))
        return True

    with context, context.attach_diagnostic_handler(keep):
        try:
            return _stablehlo.deserialize_portable_artifact(context, source)
        except (ir.MLIRError, ValueError) as error:
            raise PipelineError(diagnostics or [Diagnostic(str(error), "")], parsed=False) from error


def bytecode(module: Any) -> bytes:
    """A module as MLIR bytecode, with its locations."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def run_pipeline(module: Any, passes: str) -> None:
    """Run ``passes`` (inside ``builtin.module(...)``) in place. Raises PipelineError."""
    from torch_mlir import ir
    from torch_mlir.passmanager import PassManager

    diagnostics: list[Diagnostic] = []

    def keep(diagnostic: Any) -> bool:
        if diagnostic.severity == ir.DiagnosticSeverity.ERROR:
            diagnostics.append(_diagnostic(diagnostic))
        return True  # handled: nothing goes to stderr

    with module.context, module.context.attach_diagnostic_handler(keep):
        try:
            PassManager.parse(f"builtin.module({passes})").run(module.operation)
        except ir.MLIRError as error:
            raised = [_diagnostic(d) for d in error.error_diagnostics]
            raise PipelineError([*diagnostics, *raised] or [Diagnostic(str(error), "")]) from error


def lower(source: bytes, pipelines: Sequence[str]) -> bytes:
    """The bytecode of a module (text or bytecode) after ``pipelines``. Raises PipelineError."""
    module = parse(source, new_context())
    for pipeline in pipelines:
        run_pipeline(module, pipeline)
    return bytecode(module)


def _diagnostic(d: Any) -> Diagnostic:
    notes = "; ".join(str(n.message) for n in d.notes)
    return Diagnostic(str(d.message), location_text(d.location), notes)


_NAME = re.compile(r'^loc\("([^"]*)"(?:\(.*\))?\)$', re.DOTALL)
_FILE = re.compile(r'"([^"]+)":(\d+):\d+')


def location_text(location: Any) -> str:
    """A location as ``name`` or ``file:line``; empty when unknown. For nested ones, the innermost."""
    text = str(location)
    named = _NAME.match(text)
    if named:
        return named.group(1)
    place = _FILE.search(text)
    if place:
        return f"{place.group(1)}:{place.group(2)}"
    quoted = re.search(r'"([^"]+)"', text)
    return quoted.group(1) if quoted else ""
