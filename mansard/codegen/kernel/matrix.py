"""Matrices that the invocations of a subgroup or a workgroup hold and multiply together.

Instructions (``op``; args; result), all GPU only, and reached by all invocations of the scope at once:

=================  ==========================================================================
const              attrs value; of a matrix type: every element
matrix_load        [index, stride]; attrs memory, by: "rows" or "columns", aligned: bytes. Row r (by columns:
                   column r) starts at ``index + r * stride`` and lies in one piece. Index and stride are
                   scalars and count what an index of the memory counts, its elements or vectors: workgroup
                   memory may be of another type than the matrix. Buffers hold the matrix's own type
matrix_store       [index, stride, value]; attrs as for matrix_load; no result
matrix_multiply    [a, b, c]: ``a @ b + c`` of a (m, k), b (k, n) and c (m, n); the result has c's type
matrix_scale       [matrix, scalar]: every element times a scalar of its type
matrix_map         [matrices of f32 or i32 of one shape, use and scope]; attrs elements: scalars, one of each,
                   body: Block, value: a scalar register. The matrix of the values that the body, run for
                   each element by whoever holds it, gives; it may read registers of the block around it
matrix_reduce      [matrix c]; attrs combiner: add max; every element becomes that of its row combined, in any
                   association; NaN may get lost from max. Needs the feature matrix_reductions
matrix_convert     [matrix c]; the same matrix for use as a factor, of another float type. Needs the feature
                   matrix_conversions
add sub mul div    of two matrices of one type, element by element
neg
cast               to another element type; the shape and the use stay
=================  ==========================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from mansard.codegen.kernel.builder import KernelBuilder
from mansard.codegen.kernel.ir import Inst, KType, KValue, Matrix, Memory, SharedMemory
from mansard.dtypes import DType

OPERANDS = frozenset({DType.F16, DType.BF16, DType.I8, DType.U8})
"""Element types of factors."""
SUMS = frozenset({DType.F32, DType.F16, DType.I32})
"""Element types of accumulators."""
MATRIX_OPS = frozenset({"matrix_load", "matrix_store", "matrix_multiply", "matrix_scale"})
"""Instructions of this table that no other has."""
ELEMENTWISE = frozenset({"add", "sub", "mul", "div", "neg", "cast", "const"})
"""Instructions of the common table that take matrices."""


def a_type(dtype: DType, m: int, k: int, scope: str = "subgroup") -> KType:
    """A left factor of ``m`` rows."""
    return KType(dtype, 1, Matrix(m, k, "a", scope))


def b_type(dtype: DType, k: int, n: int, scope: str = "subgroup") -> KType:
    """A right factor of ``n`` columns."""
    return KType(dtype, 1, Matrix(k, n, "b", scope))


def c_type(dtype: DType, m: int, n: int, scope: str = "subgroup") -> KType:
    """An accumulator."""
    return KType(dtype, 1, Matrix(m, n, "c", scope))


def fill(b: KernelBuilder, type_: KType, value: float | int = 0) -> KValue:
    """A matrix with one value in every element."""
    return b.inst("const", (), type_, value=value)


def load(
    b: KernelBuilder,
    type_: KType,
    memory: Memory,
    index: KValue,
    stride: KValue,
    *,
    by: str = "rows",
    aligned: int = 0,
) -> KValue:
    """A matrix from memory, see the table; ``aligned``: bytes that the places of all rows are multiples of
    (0: of one element)."""
    attrs = {"memory": memory, "by": by, "aligned": aligned or type_.dtype.itemsize}
    return b.inst("matrix_load", (index, stride), type_, **attrs)


def store(
    b: KernelBuilder,
    memory: Memory,
    index: KValue,
    stride: KValue,
    value: KValue,
    *,
    by: str = "rows",
    aligned: int = 0,
) -> None:
    """A matrix to memory, as `load`."""
    attrs = {"memory": memory, "by": by, "aligned": aligned or value.type.dtype.itemsize}
    b.inst("matrix_store", (index, stride, value), None, **attrs)


def multiply(b: KernelBuilder, left: KValue, right: KValue, total: KValue) -> KValue:
    """``left @ right + total``."""
    return b.inst("matrix_multiply", (left, right, total), total.type)


def scale(b: KernelBuilder, matrix: KValue, factor: KValue) -> KValue:
    """Every element times a scalar."""
    return b.inst("matrix_scale", (matrix, factor), matrix.type)


def mapped(
    b: KernelBuilder, matrices: Sequence[KValue], emit: Callable[[Sequence[KValue]], KValue]
) -> KValue:
    """The matrix of what ``emit`` makes of the elements of ``matrices`` at each place."""
    elements = tuple(b.register(KType(m.type.dtype)) for m in matrices)
    with b.nested() as body:
        value = emit(elements)
    type_ = KType(value.type.dtype, 1, matrices[0].type.matrix)
    return b.inst("matrix_map", matrices, type_, elements=elements, body=body, value=value)


def reduce_rows(b: KernelBuilder, combiner: str, matrix: KValue) -> KValue:
    """Every row combined, in all of its elements."""
    return b.inst("matrix_reduce", (matrix,), matrix.type, combiner=combiner)


def as_factor(b: KernelBuilder, matrix: KValue, use: str, dtype: DType) -> KValue:
    """A sum as a factor ("a" or "b") of the next product."""
    held = matrix.type.matrix
    assert held is not None
    type_ = KType(dtype, 1, dataclasses.replace(held, use=use))
    return b.inst("matrix_convert", (matrix,), type_)


# Checks -------------------------------------------------------------------------------------------
def broken_rule(inst: Inst) -> str | None:
    """Which rule of the table an instruction on matrices breaks, or None."""
    types = [a.type for a in inst.args] + ([inst.result.type] if inst.result is not None else [])
    wrong = next((t for t in types if t.matrix is not None and t.lanes != 1), None)
    if wrong is not None:
        return f"{wrong} has lanes"
    if inst.op == "matrix_load":
        return _access_rule(inst, types[-1])
    if inst.op == "matrix_store":
        return _access_rule(inst, types[2])
    if inst.op == "matrix_multiply":
        return _multiply_rule(*types)
    if inst.op == "matrix_scale":
        fits = types[0].matrix is not None and types[1] == KType(types[0].dtype) and types[0] == types[2]
        return None if fits else "matrix_scale takes a matrix and a scalar of its type"
    if inst.op == "matrix_map":
        held = {t.matrix for t in types}
        taken = [e.type for e in inst.attrs["elements"]] + [inst.attrs["value"].type]
        fits = (
            len(held) == 1
            and {t.dtype for t in types} <= {DType.F32, DType.I32}
            and taken == [KType(t.dtype) for t in types]
        )
        return None if fits else "the matrices, their elements and the value do not fit"
    if inst.op == "matrix_reduce":
        known = inst.attrs.get("combiner") in ("add", "max") and types[0].dtype is DType.F32
        return None if known and types[0] == types[1] else "no such reduction of rows"
    if inst.op == "matrix_convert":
        return _convert_rule(*types)
    if inst.op == "cast":
        return None if types[0].matrix == types[1].matrix else "the shape or the use changes"
    if inst.op not in ELEMENTWISE:
        return f"{inst.op} does not take matrices"
    if len(set(types)) > 1:
        return "operand and result types differ"
    return None


def _convert_rule(source: KType, result: KType) -> str | None:
    if source.matrix is None or result.matrix is None:
        return "matrix_convert takes and gives a matrix"
    if source.matrix.use != "c" or dataclasses.replace(source.matrix, use=result.matrix.use) != result.matrix:
        return "only the use changes, and from that of a sum"
    return None if source.dtype.is_float and result.dtype.is_float else "both are matrices of floats"


def _access_rule(inst: Inst, type_: KType) -> str | None:
    memory = inst.attrs.get("memory")
    if type_.matrix is None:
        return "what is loaded or stored is no matrix"
    if any(a.type.lanes != 1 or not a.type.dtype.is_int for a in inst.args[:2]):
        return "index and stride are scalar ints"
    if inst.args[0].type != inst.args[1].type:
        return "index and stride differ in type"
    if inst.attrs.get("by") not in ("rows", "columns"):
        return "by is not rows or columns"
    if not isinstance(inst.attrs.get("aligned"), int):
        return "aligned is not a number of bytes"
    if isinstance(memory, SharedMemory):
        unit = memory.dtype.bits * memory.lanes
        return (
            None if unit % type_.dtype.bits == 0 else "the memory's elements hold no whole ones of the matrix"
        )
    return None if memory is None or memory.dtype is type_.dtype else f"the memory holds {memory.dtype.value}"


def _multiply_rule(a: KType, b: KType, c: KType, result: KType) -> str | None:
    if a.matrix is None or b.matrix is None or c.matrix is None or c != result:
        return "matrix_multiply takes three matrices and gives one of the third's type"
    if (a.matrix.use, b.matrix.use, c.matrix.use) != ("a", "b", "c"):
        return "the factors are not of use a and b, or the sum is not of use c"
    if len({a.matrix.scope, b.matrix.scope, c.matrix.scope}) > 1:
        return "the scopes differ"
    shapes = (a.matrix.rows, a.matrix.columns, b.matrix.columns)
    if shapes != (c.matrix.rows, b.matrix.rows, c.matrix.columns):
        return "the shapes do not fit"
    if a.dtype not in OPERANDS or b.dtype not in OPERANDS or c.dtype not in SUMS:
        return f"no product of {a.dtype.value} and {b.dtype.value} in {c.dtype.value}"
    return None
