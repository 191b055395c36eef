"""Scalar folding of the linalg frontend, and every rule of ``arith`` and ``math`` against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.frontends.linalg import dimmath
from mansard.frontends.linalg.arith import RULES
from mansard.frontends.linalg.module import import_mlir
from mansard.frontends.linalg.scalars import HOST, Space, as_dim, dim_scalar
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast, Const, DimValue, Index

N = dims.symbol(Dim("n", 1, 64))
I64 = DType.I64


def const(value: int) -> Const:
    return Const(value, I64)


# Dim arithmetic ---------------------------------------------------------------------------------
def test_formulas_of_one_extent_are_equal() -> None:
    window = dims.add(dimmath.floordiv(dims.add(N, -1), 2), 1)
    assert window == dimmath.ceildiv(N, 2) == dimmath.floordiv(dims.add(N, 1), 2)


@pytest.mark.parametrize("b", [1, 2, 3, 7])
@pytest.mark.parametrize("k", [-5, -1, 0, 1, 3, 8])
@pytest.mark.parametrize("c", [-4, 0, 5])
def test_division_is_floor_division(b: int, k: int, c: int) -> None:
    value = dims.add(dims.mul(N, k), c)
    quotient, rest = dimmath.floordiv(value, b), dimmath.mod(value, b)
    for n in (1, 2, 9, 64):
        assert dims.evaluate(quotient, {"n": n}) == (n * k + c) // b
        assert dims.evaluate(rest, {"n": n}) == (n * k + c) % b


# Folding ----------------------------------------------------------------------------------------
def test_host_integers_are_dim_expressions() -> None:
    n = dim_scalar(N)
    doubled = HOST.binary("mul", HOST.binary("add", n, const(1)), const(2))
    assert as_dim(doubled) == dims.add(dims.mul(N, 2), 2)
    assert HOST.binary("div", doubled, const(2)) == HOST.binary("add", n, const(1))
    assert as_dim(HOST.cast(n, DType.I32)) == N


@pytest.mark.parametrize(
    ("op", "a", "b", "result"),
    [
        ("lt", 0, 1, True), ("lt", 65, 64, False), ("le", 1, 1, True), ("ge", 0, 0, True), ("eq", 3, 3, True),
    ],
)  # fmt: skip
def test_comparisons_of_literals(op: str, a: int, b: int, result: bool) -> None:
    assert HOST.compare(op, const(a), const(b)) == Const(result, DType.BOOL)


def test_comparisons_are_decided_by_bounds() -> None:
    n = dim_scalar(N)
    assert HOST.compare("lt", n, const(0)) == Const(False, DType.BOOL)
    assert HOST.compare("le", n, const(64)) == Const(True, DType.BOOL)
    assert HOST.compare("eq", n, const(65)) == Const(False, DType.BOOL)
    assert isinstance(HOST.compare("lt", n, const(64)), Apply)
    space = Space((N, 4))
    assert space.compare("lt", Index(0), n) == Const(True, DType.BOOL)
    assert space.compare("ge", Index(1), const(4)) == Const(False, DType.BOOL)
    assert isinstance(space.compare("lt", Index(0), Index(1)), Apply)


def test_a_guarded_index_of_a_unit_dim_is_the_index() -> None:
    space = Space((N,))
    is_unit = space.compare("eq", dim_scalar(N), const(1))
    assert space.select(is_unit, const(0), Index(0)) == Index(0)


def test_small_divisions_of_indices() -> None:
    space = Space((3, 8))
    assert space.binary("rem", Index(0), const(3)) == Index(0)
    assert space.binary("div", Index(0), const(3)) == const(0)
    assert isinstance(space.binary("div", Index(1), const(3)), Apply)


def test_relu_is_a_maximum() -> None:
    x, zero = Arg(0, DType.F32), Const(0.0, DType.F32)
    positive = HOST.unary("not", HOST.compare("le", x, zero))
    assert HOST.select(positive, x, zero) == Apply("max", (x, zero), DType.F32)


def test_literals_wrap_and_saturate() -> None:
    assert HOST.cast(const(300), DType.I8) == Const(44, DType.I8)
    assert HOST.cast(Const(-3.9, DType.F32), DType.I32) == Const(-3, DType.I32)
    assert HOST.cast(Const(math.inf, DType.F32), DType.I8) == Const(127, DType.I8)
    assert HOST.cast(Const(math.nan, DType.F32), DType.I8) == Const(0, DType.I8)
    assert HOST.cast(Const(0.1, DType.F64), DType.F32).value == float(np.float32(0.1))
    assert HOST.binary("add", Const(127, DType.I8), Const(1, DType.I8)) == Const(-128, DType.I8)
    assert HOST.bitcast(Const(1.0, DType.F32), DType.I32) == Const(0x3F800000, DType.I32)


def test_integer_casts_of_casts_collapse_only_when_exact() -> None:
    x = Arg(0, DType.I32)
    assert HOST.cast(HOST.cast(x, I64), DType.I32) == x
    narrow = HOST.cast(HOST.cast(x, DType.I8), I64)
    assert narrow == Cast(Cast(x, DType.I8), I64)


def test_dim_scalars_of_other_types_are_casts() -> None:
    assert dim_scalar(N) == DimValue(N)
    assert dim_scalar(N, DType.I32) == Cast(DimValue(N), DType.I32)


# Rules ------------------------------------------------------------------------------------------
X = np.array([-2.5, -1.0, -0.75, -0.5, -0.0, 0.0, 0.3, 0.49999997, 0.5, 1.0, 1.5, 2.0, 7.25], np.float32)
UNIT = np.array([-0.9, -0.5, 0.0, 0.25, 0.9], np.float32)
POSITIVE = np.array([1e-3, 0.5, 1.0, 2.0, 50.0], np.float32)
ABOVE_ONE = np.array([1.0, 1.5, 8.0], np.float32)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, 1.0], np.float32)
Y = np.array([1.5, -2.0, 0.5, 3.0, -1.0, 2.0, 0.7, 1.0, -0.5, 3.0, 0.5, -2.0, 2.0], np.float32)
P = np.array([-9, -7, -1, 0, 1, 5, 8, 127, -128], np.int8)
Q = np.array([2, -3, 7, 5, -1, 2, 3, 127, 3], np.int8)
U, V = P.view(np.uint8), Q.view(np.uint8)
erf = np.vectorize(math.erf)


def away(x: np.ndarray) -> np.ndarray:
    return np.trunc(x.astype(np.float64) + np.copysign(0.5, x))


FLOAT_UNARY = {
    "arith.negf": (X, np.negative), "math.absf": (X, np.abs), "math.sqrt": (POSITIVE, np.sqrt),
    "math.rsqrt": (POSITIVE, lambda x: 1 / np.sqrt(x)), "math.exp": (X, np.exp), "math.exp2": (X, np.exp2),
    "math.expm1": (X, np.expm1), "math.log": (POSITIVE, np.log), "math.log2": (POSITIVE, np.log2),
    "math.log10": (POSITIVE, np.log10), "math.log1p": (POSITIVE, np.log1p), "math.erf": (X, erf),
    "math.sin": (X, np.sin), "math.cos": (X, np.cos), "math.tan": (X, np.tan), "math.tanh": (X, np.tanh),
    "math.sinh": (X, np.sinh), "math.cosh": (X, np.cosh), "math.asin": (UNIT, np.arcsin),
    "math.acos": (UNIT, np.arccos), "math.atan": (X, np.arctan), "math.asinh": (X, np.arcsinh),
    "math.acosh": (ABOVE_ONE, np.arccosh), "math.atanh": (UNIT, np.arctanh), "math.cbrt": (X, np.cbrt),
    "math.floor": (X, np.floor), "math.ceil": (X, np.ceil), "math.trunc": (X, np.trunc),
    "math.round": (X, away), "math.roundeven": (X, np.round),
}  # fmt: skip
FLOAT_BINARY = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.remf": np.fmod, "arith.maximumf": np.maximum, "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax, "arith.minnumf": np.fmin, "math.atan2": np.arctan2,
    "math.copysign": np.copysign,
}  # fmt: skip


def trunc_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.trunc(a.astype(np.float64) / b).astype(np.int64)


INT_BINARY = {
    "arith.addi": lambda: P + Q, "arith.subi": lambda: P - Q, "arith.muli": lambda: P * Q,
    "arith.divsi": lambda: trunc_div(P, Q), "arith.remsi": lambda: P - trunc_div(P, Q) * Q,
    "arith.floordivsi": lambda: P.astype(int) // Q, "arith.ceildivsi": lambda: -(-P.astype(int) // Q),
    "arith.divui": lambda: U // V, "arith.remui": lambda: U % V, "arith.maxsi": lambda: np.maximum(P, Q),
    "arith.minsi": lambda: np.minimum(P, Q), "arith.maxui": lambda: np.maximum(U, V),
    "arith.minui": lambda: np.minimum(U, V), "arith.andi": lambda: P & Q, "arith.ori": lambda: P | Q,
    "arith.xori": lambda: P ^ Q,
}  # fmt: skip


def elementwise(op: str, types: list[str], result: str, inputs: list[np.ndarray]) -> np.ndarray:
    """Run one scalar op over vectors: ``op`` is its text with %x, %y, %z for the operands."""
    n = len(inputs[0])
    names = ["x", "y", "z"][: len(types)]
    arguments = ", ".join(f"%{a}0: tensor<{n}x{t}>" for a, t in zip(names, types, strict=True))
    ins = ", ".join(f"%{a}0" for a in names)
    in_types = ", ".join(f"tensor<{n}x{t}>" for t in types)
    block = ", ".join(f"%{a}: {t}" for a, t in zip(names, types, strict=True))
    maps = ", ".join(["#id"] * (len(types) + 1))
    graph = import_mlir(
        f"""#id = affine_map<(d0) -> (d0)>
        func.func @main({arguments}) -> tensor<{n}x{result}> {{
          %e = tensor.empty() : tensor<{n}x{result}>
          %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
              ins({ins} : {in_types}) outs(%e : tensor<{n}x{result}>) {{
          ^bb0({block}, %o: {result}):
            {op}
            linalg.yield %s : {result}
          }} -> tensor<{n}x{result}>
          return %r : tensor<{n}x{result}>
        }}"""
    )
    return interpret(graph, inputs)[0]


@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_float_unary(name: str) -> None:
    x, wanted = FLOAT_UNARY[name]
    out = elementwise(f"%s = {name} %x : f32", ["f32"], "f32", [x])
    np.testing.assert_allclose(out, wanted(x), rtol=2e-6, atol=1e-7)
    if name not in ("math.round", "math.cbrt", "math.asinh"):  # these give 0 for -0
        np.testing.assert_array_equal(np.signbit(out), np.signbit(wanted(x)))


@pytest.mark.parametrize("name", FLOAT_BINARY)
def test_float_binary(name: str) -> None:
    nan = np.array([np.nan, 1.0, np.nan], np.float32)
    x, y = np.append(X, nan), np.append(Y, nan[[1, 0, 2]])
    out = elementwise(f"%s = {name} %x, %y : f32", ["f32", "f32"], "f32", [x, y])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(out, FLOAT_BINARY[name](x, y), rtol=1e-6)


@pytest.mark.parametrize("name", INT_BINARY)
def test_int_binary(name: str) -> None:
    out = elementwise(f"%s = {name} %x, %y : i8", ["i8", "i8"], "i8", [P, Q])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, INT_BINARY[name]().astype(np.int64).astype(np.int8))


@pytest.mark.parametrize("width", [8, 32, 64])
def test_shifts(width: int) -> None:
    kind = np.dtype(f"int{width}")
    x = np.array([-128, -1, 0, 1, 100, 127], kind)
    amount = np.array([0, 1, 7, 3, 2, 5], kind)
    for name, wanted in (
        ("shli", x << amount),
        ("shrsi", x >> amount),
        ("shrui", (x.view(f"u{width // 8}") >> amount.view(f"u{width // 8}")).view(kind)),
    ):
        out = elementwise(f"%s = arith.{name} %x, %y : i{width}", [f"i{width}"] * 2, f"i{width}", [x, amount])
        np.testing.assert_array_equal(out, wanted, err_msg=name)


CMPF = {
    "false": lambda a, b: np.zeros(a.shape, bool), "true": lambda a, b: np.ones(a.shape, bool),
    "oeq": np.equal, "ogt": np.greater, "oge": np.greater_equal,
    "olt": np.less, "ole": np.less_equal, "one": lambda a, b: (a < b) | (a > b),
    "ord": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "ueq": lambda a, b: ~((a < b) | (a > b)),
    "ugt": lambda a, b: ~(a <= b), "uge": lambda a, b: ~(a < b), "ult": lambda a, b: ~(a >= b),
    "ule": lambda a, b: ~(a > b), "une": np.not_equal, "uno": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip


@pytest.mark.parametrize("predicate", CMPF)
def test_float_comparisons(predicate: str) -> None:
    a, b = (g.ravel() for g in np.meshgrid(SPECIAL, SPECIAL))
    out = elementwise(f"%s = arith.cmpf {predicate}, %x, %y : f32", ["f32", "f32"], "i1", [a, b])
    np.testing.assert_array_equal(out, CMPF[predicate](a, b))


@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize("predicate", ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"])
def test_integer_comparisons(predicate: str, width: int) -> None:
    kind = np.dtype(f"int{width}")
    a, b = (g.ravel() for g in np.meshgrid(np.array([-128, -1, 0, 1, 127], kind), np.array([-1, 0, 5], kind)))
    signs = (a.view(f"u{kind.itemsize}"), b.view(f"u{kind.itemsize}")) if predicate[0] == "u" else (a, b)
    operator = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
                "gt": np.greater, "ge": np.greater_equal}[predicate[-2:]]  # fmt: skip
    kinds = [f"i{width}"] * 2
    out = elementwise(f"%s = arith.cmpi {predicate}, %x, %y : i{width}", kinds, "i1", [a, b])
    np.testing.assert_array_equal(out, operator(*signs))


def test_one_bit_comparisons_and_arithmetic() -> None:
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    for text, wanted in (
        ("arith.cmpi slt, %x, %y", a & ~b), ("arith.cmpi ult, %x, %y", ~a & b), ("arith.addi %x, %y", a ^ b),
        ("arith.muli %x, %y", a & b), ("arith.xori %x, %y", a ^ b), ("arith.andi %x, %y", a & b),
    ):  # fmt: skip
        out = elementwise(f"%s = {text} : i1", ["i1", "i1"], "i1", [a, b])
        np.testing.assert_array_equal(out, wanted, err_msg=text)


BITS = np.array([True, False])
WIDE = P.astype(np.int64) * 3
BYTES = np.array([0.5, 200.9], np.float32)
CASTS = {
    "extf f32 f64": (X, np.float64, X), "truncf f64 f16": (X.astype(np.float64), np.float16, X),
    "extsi i8 i32": (P, np.int32, P), "extui i8 i32": (P, np.int32, U),
    "extui i32 i64": (P.astype(np.int32), np.int64, P.astype(np.int32).view(np.uint32)),
    "trunci i64 i8": (WIDE, np.int8, WIDE.astype(np.int8)), "trunci i64 i1": (WIDE, np.bool_, WIDE & 1),
    "extui i1 i64": (BITS, np.int64, [1, 0]), "extsi i1 i64": (BITS, np.int64, [-1, 0]),
    "uitofp i1 f32": (BITS, np.float32, [1, 0]),
    "sitofp i8 f32": (P, np.float32, P), "uitofp i8 f32": (P, np.float32, U),
    "uitofp i64 f64": (np.array([-1, 5]), np.float64, [2.0**64, 5]),
    "fptosi f32 i32": (X, np.int32, np.trunc(X)),
    "fptoui f32 i8": (BYTES, np.int8, np.array([0, 200], np.uint8).view(np.int8)),
    "bitcast f32 i32": (X, np.int32, X.view(np.int32)),
    "index_castui i32 index": (np.array([7, 0], np.int32), np.int64, [7, 0]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASTS)
def test_casts(case: str) -> None:
    x, kind, wanted = CASTS[case]
    name, source, target = case.split()
    out = elementwise(f"%s = arith.{name} %x : {source} to {target}", [source], target, [x])
    assert out.dtype == kind
    np.testing.assert_array_equal(out, np.asarray(wanted).astype(kind))


def test_powers() -> None:
    for exponent in (-3, -1, 1, 2, 3, 5, 12):
        text = f"%k = arith.constant {exponent} : i64\n%s = math.fpowi %x, %k : f32, i64"
        np.testing.assert_allclose(elementwise(text, ["f32"], "f32", [Y]), Y**exponent, rtol=1e-5)
    for power in (0.5, 2.0, 3.0, -1.0):
        text = f"%k = arith.constant {power} : f32\n%s = math.powf %x, %k : f32"
        np.testing.assert_allclose(elementwise(text, ["f32"], "f32", [POSITIVE]), POSITIVE**power, rtol=1e-5)


def test_other_rules() -> None:
    np.testing.assert_array_equal(
        elementwise("%s = math.absi %x : i32", ["i32"], "i32", [P.astype("i4")]), abs(P.astype("i4"))
    )
    np.testing.assert_allclose(
        elementwise("%s = math.fma %x, %y, %z : f32", ["f32"] * 3, "f32", [X, Y, X]), X * Y + X, rtol=1e-6
    )
    for name, wanted in (("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite)):
        out = elementwise(f"%s = math.{name} %x : f32", ["f32"], "i1", [SPECIAL])
        np.testing.assert_array_equal(out, wanted(SPECIAL))
    chosen = elementwise("%s = arith.select %x, %y, %z : f32", ["i1", "f32", "f32"], "f32", [X > 0, X, Y])
    np.testing.assert_array_equal(chosen, np.where(X > 0, X, Y))


def test_every_rule_is_tested() -> None:
    """The tables above, and the names that only the last tests mention."""
    tabled = {*FLOAT_UNARY, *FLOAT_BINARY, *INT_BINARY, *(f"arith.{c.split()[0]}" for c in CASTS)}
    named = {
        "math.absi", "math.fma", "math.isnan", "math.isinf", "math.isfinite", "arith.select", "math.fpowi",
        "math.powf", "arith.cmpf", "arith.cmpi", "arith.shli", "arith.shrsi", "arith.shrui",
    }  # fmt: skip
    shared = {"arith.index_cast", "arith.ceildivui", "math.ipowi"}  # the rule of another op in the tables
    assert set(RULES) - tabled - named - shared == set()
