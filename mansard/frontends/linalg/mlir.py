"""A narrow interface to MLIR's Python bindings: parsing, pass pipelines, types, attributes.

The bindings come with the ``torch-mlir`` wheel, which also has the upstream dialects.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.ir.scalar import Const

DYNAMIC = -(2**63)
"""MLIR's marker of a dynamic size in static shape attributes (``ShapedType::kDynamic``)."""

_DTYPES = {
    "f64": DType.F64, "f32": DType.F32, "f16": DType.F16, "bf16": DType.BF16, "f8E4M3FN": DType.F8,
    "i64": DType.I64, "i32": DType.I32, "i16": DType.I16, "i8": DType.I8, "i4": DType.I4,
    "i1": DType.BOOL, "index": DType.I64, "ui8": DType.U8, "ui4": DType.U4,
    "si64": DType.I64, "si32": DType.I32, "si16": DType.I16, "si8": DType.I8, "si4": DType.I4,
}  # fmt: skip


def new_context() -> Any:
    """An MLIR context with every dialect that a model may use registered."""
    try:
        from torch_mlir import ir
        from torch_mlir.dialects import torch as torch_dialect
    except ImportError as error:
        raise ImportModelError(
            "importing a model needs torch-mlir; install mansard with its compile extra: "
            "pip install 'mansard[compile]'"
        ) from error
    context = ir.Context()
    torch_dialect.register_dialect(context)
    return context


def parse_module(text: str) -> Any:
    """An MLIR module parsed from text. Raises ImportModelError with MLIR's message and position."""
    from torch_mlir import ir

    context = new_context()
    if "tm_tensor." in text:
        # The bindings cannot register this dialect; a pass that depends on it loads it.
        empty = ir.Module.parse("", context)
        run_pipeline(empty, "func.func(convert-torch-to-tmtensor)")
    try:
        return ir.Module.parse(text, context)
    except ir.MLIRError as error:
        raise ImportModelError(f"not a valid MLIR module: {_messages(error)}") from error


@dataclass(frozen=True)
class Diagnostic:
    """One error that MLIR reported: the message, the op's location, and the text of attached notes."""

    message: str
    location: str
    notes: str = ""


class PipelineError(Exception):
    """A pass pipeline failed; ``diagnostics`` has the reasons."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("; ".join(d.message for d in diagnostics))


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


def _diagnostic(d: Any) -> Diagnostic:
    notes = "; ".join(str(n.message) for n in d.notes)
    return Diagnostic(str(d.message), location_text(d.location), notes)


def _messages(error: Any) -> str:
    return "; ".join(f"{d.message} ({location_text(d.location)})" for d in error.error_diagnostics)


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


def element_type(mlir_type: Any, op: str = "", location: str = "") -> DType:
    """The DType of a scalar type, or of a tensor type's elements. Raises UnsupportedOpError."""
    text = str(getattr(mlir_type, "element_type", mlir_type))
    if text not in _DTYPES:
        raise UnsupportedOpError(
            op or "type", location, f"element type {text} is not supported; supported: {', '.join(_DTYPES)}"
        )
    return _DTYPES[text]


def is_tensor(value: Any) -> bool:
    """True for a value of ranked tensor type."""
    return type(value.type).__name__ == "RankedTensorType"


def scalar_literal(op: Any) -> Const:
    """The literal of an ``arith.constant`` of scalar type."""
    attribute, dtype = op.attributes["value"], element_type(op.results[0].type)
    if dtype is DType.BOOL:
        return Const(bool(attribute.value), dtype)
    return Const(float(attribute.value) if dtype.is_float else int(attribute.value), dtype)


def tensor_shape(mlir_type: Any) -> tuple[int | None, ...]:
    """The static shape of a ranked tensor type, with None for dynamic sizes."""
    return tuple(
        None if mlir_type.is_dynamic_dim(i) else mlir_type.get_dim_size(i) for i in range(mlir_type.rank)
    )


def dense_array(attribute: Any, blobs: dict[str, bytes]) -> npt.NDArray[np.generic]:
    """The data of a dense constant; ``blobs`` holds the module's resource blobs."""
    text_type = attribute.type
    shape = tuple(text_type.get_dim_size(i) for i in range(text_type.rank))
    dtype = element_type(text_type).numpy
    resource = re.match(r"dense_resource<(.+?)>", str(attribute)) if _is_opaque(attribute) else None
    if resource:
        if resource.group(1) not in blobs:
            raise ImportModelError(f"the module has no resource blob {resource.group(1)!r}")
        return np.frombuffer(blobs[resource.group(1)], dtype=dtype).reshape(shape)
    try:
        return np.array(attribute, dtype=dtype).reshape(shape)
    except (ValueError, TypeError, RuntimeError):  # types without a buffer format: bf16, f8, i4
        return _parse_dense(str(attribute), dtype, shape)


def _is_opaque(attribute: Any) -> bool:
    return not hasattr(attribute, "is_splat")


def _parse_dense(text: str, dtype: np.dtype[np.generic], shape: Sequence[int]) -> npt.NDArray[np.generic]:
    """Parse ``dense<...>`` in its printed form: nested lists, one element, or a hex string of bytes."""
    content = text[text.index("<") + 1 : text.rindex("> : ")]
    if content.startswith('"0x'):
        data = bytes.fromhex(content[3:-1])
        return np.frombuffer(data, dtype=dtype).reshape(shape)
    values = ast.literal_eval(re.sub(r"\b(true|false)\b", lambda m: m.group(1).title(), content) or "[]")
    flat = list(_flatten(values))
    if any(isinstance(v, int) and abs(v) > 448 for v in flat) and dtype.kind not in "iub":
        # Non-finite floats are printed as their bits, in hex.
        bits = np.dtype(f"u{dtype.itemsize}")
        items = [np.array(v, bits).view(dtype)[()] if isinstance(v, int) else v for v in flat]
        flat = [float(v) for v in items]
    return np.broadcast_to(np.array(flat).astype(dtype).reshape(shape if len(flat) > 1 else ()), shape)


def _flatten(values: Any) -> Any:
    if isinstance(values, list):
        for v in values:
            yield from _flatten(v)
    else:
        yield values


def resource_blobs(module: Any) -> dict[str, bytes]:
    """The data of ``dense_resource`` constants, by key. The first four bytes of a blob are its alignment."""
    text = str(module)
    start = text.find("dialect_resources")
    if start < 0:
        return {}
    matches = re.finditer(r'([\w.$-]+|"[^"]+"): "0x([0-9A-Fa-f]*)"', text[start:])
    return {m.group(1).strip('"'): bytes.fromhex(m.group(2))[4:] for m in matches}
