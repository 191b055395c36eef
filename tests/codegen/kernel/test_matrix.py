"""Matrices in kernel IR: the rules of their instructions, and their SPIR-V."""

import pytest

from mansard.codegen.kernel import Inst, KernelBuilder, KType, matrix
from mansard.codegen.kernel.verify import verify
from mansard.codegen.spirv.function import KernelEmitter
from mansard.dtypes import DType
from mansard.errors import CodegenError

F32, F16, BF16, I8, I32 = DType.F32, DType.F16, DType.BF16, DType.I8, DType.I32


def multiply(dtype, sums, depth=16, change=None):
    """c = a @ b, a from a buffer and b from shared memory, stored by rows; ``change`` meddles with it."""
    b = KernelBuilder("k", [(dtype, False), (sums, True)], 1, workgroup=(32, 1, 1), index=I32)
    shared = b.shared(I32, 64, 4)
    rows, stride = b.param(0), b.idx(depth * dtype.bits // 128)
    total = matrix.fill(b, matrix.c_type(sums, 16, 16))
    with b.for_(0, rows, depth, inits=[total]) as loop:
        left = matrix.load(b, matrix.a_type(dtype, 16, depth), b.bindings[0], loop.index, rows, aligned=16)
        b.barrier()
        right = matrix.load(b, matrix.b_type(dtype, depth, 16), shared, b.idx(0), stride, by="columns")
        values = {"left": left, "right": right, "sum": loop.carried[0]}
        values.update(change(b, values) if change else {})
        loop.yield_(matrix.multiply(b, values["left"], values["right"], values["sum"]))
    matrix.store(b, b.bindings[1], b.idx(0), b.idx(16), loop.results[0])
    return b.build()


@pytest.mark.parametrize(("dtype", "sums", "depth"), [(F16, F32, 16), (BF16, F32, 16), (I8, I32, 32)])
def test_products_and_what_they_need(dtype, sums, depth):
    kernel = multiply(dtype, sums, depth)
    verify(kernel)
    emitter = KernelEmitter(kernel)
    text = "\n".join(map(str, emitter.emit()))
    assert f"matrix_16x16x{depth}_{dtype.value}_{sums.value}" in emitter.requires()
    assert "cooperative_matrix" in emitter.requires()
    assert "OpCooperativeMatrixMulAddKHR" in text and "OpMemoryModel 5348 3" in text
    # Matrices that loops carry are kept in variables; the index is a phi.
    assert text.count("OpVariable") >= 2 and text.count("OpPhi") == 1


def test_kernels_without_matrices_keep_the_simple_memory_model():
    b = KernelBuilder("k", [(F32, True)], 0, workgroup=(32, 1, 1), index=I32)
    shared = b.shared(F32, 32)
    b.store(shared, b.local_id(0), b.const(1.0, F32))
    b.barrier()
    b.store(b.bindings[0], b.local_id(0), b.load(shared, b.local_id(0)))
    text = "\n".join(map(str, KernelEmitter(b.build()).emit()))
    assert "OpMemoryModel 5348 1" in text


WRONG = [
    ("the factors are not of use", lambda b, v: {"left": v["right"]}),
    ("the shapes do not fit", lambda b, v: {"left": other(b, matrix.a_type(F16, 16, 8))}),
    ("the scopes differ", lambda b, v: {"left": other(b, matrix.a_type(F16, 16, 16, "workgroup"))}),
    ("no product of f32", lambda b, v: {"left": other(b, matrix.a_type(F32, 16, 16), F32)}),
    ("takes three matrices", lambda b, v: {"left": b.const(1.0, F16)}),
    ("does not take matrices", lambda b, v: {"sum": b.inst("sqrt", (v["sum"],), v["sum"].type)}),
    ("a matrix and a scalar", lambda b, v: {"sum": matrix.scale(b, v["sum"], b.const(1, I32))}),
    (
        "the shape or the use changes",
        lambda b, v: {"sum": b.inst("cast", (v["right"],), matrix.c_type(F32, 16, 16))},
    ),
    ("index and stride differ in type", lambda b, v: {"left": other(b, stride=b.const(1, DType.I64))}),
    ("by is not rows or columns", lambda b, v: {"left": other(b, by="diagonals")}),
    ("the memory holds f16", lambda b, v: {"left": other(b, matrix.a_type(BF16, 16, 16))}),
]


def other(b, type_=None, memory_type=None, stride=None, by="rows"):
    """A left factor from the first buffer, or from shared memory of a type."""
    memory = b.shared(memory_type, 256) if memory_type else b.bindings[0]
    type_ = type_ or matrix.a_type(F16, 16, 16)
    return matrix.load(b, type_, memory, b.idx(0), stride or b.idx(16), by=by)


@pytest.mark.parametrize(("message", "change"), WRONG, ids=[m for m, _ in WRONG])
def test_broken_rules(message, change):
    with pytest.raises(CodegenError, match=message):
        verify(multiply(F16, F32, change=change))


def test_matrix_instructions_take_matrices():
    b = KernelBuilder("k", [(F32, True)], 0, workgroup=(32, 1, 1), index=I32)
    b.inst("matrix_load", (b.idx(0), b.idx(1)), KType(F32), memory=b.bindings[0], by="rows", aligned=4)
    with pytest.raises(CodegenError, match="no matrix"):
        verify(b.build())
    assert isinstance(b.build().body.nodes[-1], Inst)
