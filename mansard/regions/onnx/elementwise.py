"""Scalar ops as ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir.combiners import neutral
from mansard.regions.named.builder import Array
from mansard.regions.named.ops import Elementwise
from mansard.regions.onnx.writer import OnnxWriter, onnx_type

_ONE_NODE = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "min": "Min", "max": "Max", "pow": "Pow",
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "round": "Round",
    "sqrt": "Sqrt", "exp": "Exp", "log": "Log", "erf": "Erf", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "tanh": "Tanh", "sinh": "Sinh", "cosh": "Cosh", "asin": "Asin", "acos": "Acos", "atan": "Atan",
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
    "select": "Where", "isnan": "IsNaN", "isinf": "IsInf", "sigmoid": "Sigmoid", "hardswish": "HardSwish",
}  # fmt: skip
_OF_BOOLS = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not", "eq": "Equal"}
_OF_INTEGERS = frozenset(
    {"add", "sub", "mul", "div", "min", "max", "neg", "abs", "sign", "eq", "lt", "le", "gt", "ge", "select"}
)


def write_elementwise(w: OnnxWriter, op: Elementwise, operands: Sequence[str]) -> str:
    """The nodes of a scalar op. Raises CodegenError for one that ONNX does not have on its type."""
    source = op.inputs[-1].type.dtype
    given = DType.F32 if op.inputs[-1] in w.graph.encodings else source
    if op.op in ("cast", "bitcast"):
        return _converted(w, op, operands[0], given)
    if op.op == "ne":
        return w.node("Not", w.node("Equal", *operands))
    if given is DType.BOOL and op.op in _OF_BOOLS:
        return w.node(_OF_BOOLS[op.op], *operands)
    if given.is_float and op.op in _COMPOSED:
        return _COMPOSED[op.op](w, operands)
    known = op.op in _ONE_NODE and (given.is_float or op.op in _OF_INTEGERS)
    if not known and not (given is DType.BOOL and op.op == "select"):
        raise CodegenError(f"ONNX has no {op.op} of {given.value}")
    return w.node(_ONE_NODE[op.op], *operands)


def _converted(w: OnnxWriter, op: Elementwise, x: str, given: DType) -> str:
    dtype = op.output.type.dtype
    if op.op == "bitcast" and not (given.is_int and dtype.is_int):
        raise CodegenError("ONNX has no bitcast between floats and integers")
    if op.op == "cast" and given.is_float and dtype.is_int:
        x = w.node("Clip", x, *(w.constant(bound) for bound in _bounds(given, dtype)))
    return w.node("Cast", x, to=onnx_type(dtype))


def _bounds(given: DType, dtype: DType) -> list[Array]:
    """The floats between which numbers have a place in an integer type; beyond them a Cast is undefined."""
    low, high = neutral("max", dtype), neutral("min", dtype)
    bounds = [np.array(limit).astype(given.numpy) for limit in (low, high)]
    if float(bounds[1]) > high:
        bounds[1] = np.nextafter(bounds[1], np.zeros_like(bounds[1]))
    return bounds


def _scalar(w: OnnxWriter, value: float) -> str:
    return w.constant(np.array(value, np.float32))


def _gelu(w: OnnxWriter, operands: Sequence[str]) -> str:
    (x,) = operands
    part = w.node("Erf", w.node("Mul", x, _scalar(w, math.sqrt(0.5))))
    return w.node("Mul", w.node("Mul", x, _scalar(w, 0.5)), w.node("Add", part, _scalar(w, 1.0)))


def _logarithm(base: float) -> Callable[[OnnxWriter, Sequence[str]], str]:
    return lambda w, operands: w.node("Mul", w.node("Log", *operands), _scalar(w, 1 / math.log(base)))


_COMPOSED: Mapping[str, Callable[[OnnxWriter, Sequence[str]], str]] = {
    "rsqrt": lambda w, operands: w.node("Reciprocal", w.node("Sqrt", *operands)),
    "exp2": lambda w, operands: w.node("Exp", w.node("Mul", *operands, _scalar(w, math.log(2)))),
    "log2": _logarithm(2),
    "log1p": lambda w, operands: w.node("Log", w.node("Add", *operands, _scalar(w, 1.0))),
    "expm1": lambda w, operands: w.node("Sub", w.node("Exp", *operands), _scalar(w, 1.0)),
    "trunc": lambda w, operands: w.node(
        "Mul", w.node("Sign", *operands), w.node("Floor", w.node("Abs", *operands))
    ),
    "floordiv": lambda w, operands: w.node("Floor", w.node("Div", *operands)),
    "rem": lambda w, operands: w.node("Mod", *operands, fmod=1),
    "hardsigmoid": lambda w, operands: w.node("HardSigmoid", *operands, alpha=1 / 6, beta=0.5),
    "silu": lambda w, operands: w.node("Mul", *operands, w.node("Sigmoid", *operands)),
    "gelu": _gelu,
}
