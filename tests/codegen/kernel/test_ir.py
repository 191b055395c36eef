"""The printer and the verifier of kernel IR."""

import pytest

from mansard.codegen.kernel import Block, For, If, Inst, Kernel, KernelBuilder, KType, KValue
from mansard.codegen.kernel.verify import INSTRUCTIONS, verify
from mansard.dtypes import DType
from mansard.errors import CodegenError

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL


def builder(**options):
    return KernelBuilder("k", [(F32, False), (F32, True), (DType.F16, True)], 1, **options)


def value(id_, dtype=F32, lanes=1):
    return KValue(id_, KType(dtype, lanes))


def kernel(*nodes, bindings=None, shared=()):
    b = builder()
    return Kernel(
        "k", b.bindings if bindings is None else bindings, 1, (1, 1, 1), shared, Block([*nodes]), I64
    )


def const(id_, literal=0, dtype=F32, lanes=1):
    return Inst("const", (), value(id_, dtype, lanes), {"value": literal})


def test_printed_kernel_shows_structure_types_and_memory():
    b = builder()
    shared = b.shared(F32, 16)
    n = b.param(0)
    with b.for_(0, n, 8, inits=[b.const(0.0, F32, 8)], unroll=2) as loop:
        loop.yield_(b.add(loop.carried[0], b.load(b.bindings[0], loop.index, 8)))
    total = b.reduce("add", loop.results[0])
    with b.if_(b.compare("gt", total, b.const(1.0, F32))):
        b.store(shared, b.idx(3), total)
    assert str(b.build()) == "\n".join(
        [
            "kernel k(b0:f32, b1:f32 rw, b2:f16 rw; 1 params) workgroup 1x1x1 index i64 {",
            "  shared s0: f32[16]",
            "  %0:i64 = param index=0",
            "  %1:f32<8> = const value=0.0",
            "  %2:i64 = const value=0",
            "  %3:i64 = const value=8",
            "  %8:f32<8> = for %4:i64 in range(%2, %0, %3) carried(%5 = %1) unroll=2 {",
            "    %6:f32<8> = load %4 memory=b0",
            "    %7:f32<8> = add %5, %6",
            "    yield %7",
            "  }",
            "  %9:f32 = reduce %8 combiner=add",
            "  %10:f32 = const value=1.0",
            "  %11:bool = gt %9, %10",
            "  if %11 {",
            "    %12:i64 = const value=3",
            "    store %12, %9 memory=s0",
            "  }",
            "}",
        ]
    )


def test_a_correct_kernel_passes():
    b = builder()
    with b.for_(0, b.param(0), 1) as loop, b.if_(b.compare("lt", loop.index, b.idx(3))):
        b.store(b.bindings[1], loop.index, b.load(b.bindings[0], loop.index))
    verify(b.build())


def test_every_instruction_has_a_rule():
    listed = """
    const param workgroup_id local_id load load_words unpack nibbles nibble_pairs float12 store add sub
    mul div rem neg abs min max fma dot dot_bytes early join_bytes round_bytes prefetch sqrt floor ceil
    round trunc and or xor not shl shr eq ne lt le gt ge select cast bitcast splat extract insert shuffle
    iota reduce subgroup_reduce subgroup_reduce_each subgroup_scan subgroup_id subgroup_count
    subgroup_lane subgroup_size atomic store_lane barrier matrix_load matrix_store matrix_multiply
    matrix_scale matrix_map matrix_reduce matrix_convert exp2_native warpgroup_product workgroups
    stream_wait stream_load stream_next quad_products float12_pairs tile_products"""
    assert frozenset(listed.split()) == INSTRUCTIONS


BINDINGS = builder().bindings
BROKEN = {
    "unknown instruction": [Inst("hypot", (), value(0))],
    "used where it is not defined": [Inst("neg", (value(0),), value(1))],
    "defined twice": [const(0), const(0)],
    "takes 2 arguments": [const(0), Inst("add", (value(0),), value(1))],
    "result missing": [const(0), Inst("neg", (value(0),), None)],
    "operand and result types differ": [const(0), Inst("neg", (value(0),), value(1, F32, 2))],
    "no arithmetic on f16": [
        const(0, 0, DType.F16),
        Inst("neg", (value(0, DType.F16),), value(1, DType.F16)),
    ],
    "arithmetic on bool": [const(0, 0, BOOL), Inst("add", (value(0, BOOL),) * 2, value(1, BOOL))],
    "unsigned": [const(0, 0, DType.U8), Inst("neg", (value(0, DType.U8),), value(1, DType.U8))],
    "not a float": [const(0, 0, I64), Inst("sqrt", (value(0, I64),), value(1, I64))],
    "bit operation on a float": [const(0), Inst("and", (value(0),) * 2, value(1))],
    "not bool of these lanes": [const(0), Inst("lt", (value(0),) * 2, value(1))],
    "condition is not bool": [const(0), Inst("select", (value(0),) * 3, value(1))],
    "lanes change": [const(0), Inst("cast", (value(0),), value(1, I64, 2))],
    "width changes": [const(0), Inst("bitcast", (value(0),), value(1, I64))],
    "no such lane": [const(0, 0, F32, 4), Inst("extract", (value(0, F32, 4),), value(1), {"lane": 4})],
    "types do not match": [
        const(0, 0, F32, 4),
        Inst("insert", (value(0, F32, 4),) * 2, value(1, F32, 4), {"lane": 0}),
    ],
    "combiner 'sub'": [
        const(0, 0, F32, 4),
        Inst("reduce", (value(0, F32, 4),), value(1), {"combiner": "sub"}),
    ],
    "no such param": [Inst("param", (), value(0, I64), {"index": 1})],
    "axis is not": [Inst("workgroup_id", (), value(0, I64), {"axis": 3})],
    "holds f32": [
        const(0, 0, I64),
        Inst("load", (value(0, I64),), value(1, I64), {"memory": BINDINGS[0]}),
    ],
    "not i32 or i64": [const(0), Inst("load", (value(0),), value(1), {"memory": BINDINGS[0]})],
    "other lanes than the value": [
        const(0, 0, I64, 2),
        Inst("load", (value(0, I64, 2),), value(1, F32, 4), {"memory": BINDINGS[0]}),
    ],
    "not writable": [
        const(0, 0, I64),
        const(1),
        Inst("store", (value(0, I64), value(1)), None, {"memory": BINDINGS[0]}),
    ],
    "no atomic min on f32": [
        const(0, 0, I64),
        const(1),
        Inst("atomic", (value(0, I64), value(1)), None, {"memory": BINDINGS[1], "combiner": "min"}),
    ],
    "not a scalar bool": [const(0), If(value(0), Block(), Block())],
    "without memory": [const(0, 0, I64), Inst("load", (value(0, I64),), value(1))],
}


@pytest.mark.parametrize("message", list(BROKEN))
def test_broken_kernels_are_refused(message):
    with pytest.raises(CodegenError, match=message):
        verify(kernel(*BROKEN[message]))


def loop(**changes):
    parts = {
        "lower": value(0, I64), "upper": value(0, I64), "step": value(1, I64), "index": value(2, I64),
        "inits": (value(3),), "carried": (value(4),), "body": Block(), "yields": (value(4),),
        "results": (value(5),),
    }  # fmt: skip
    return [const(0, 0, I64), const(1, 1, I64), const(3), For(**{**parts, **changes})]


def test_loops_carry_equal_types_and_keep_their_values_inside():
    verify(kernel(*loop()))
    with pytest.raises(CodegenError, match="types of results"):
        verify(kernel(*loop(results=(value(5, I64),))))
    with pytest.raises(CodegenError, match="differ in type"):
        verify(kernel(*loop(index=value(2, DType.I32))))
    with pytest.raises(CodegenError, match="not defined"):
        verify(kernel(*loop(), Inst("neg", (value(4),), value(9))))


def test_packed_memory_is_refused():
    b = KernelBuilder("k", [(DType.I4, False)], 0)
    with pytest.raises(CodegenError, match="accessed as u8"):
        verify(b.build())


def test_an_error_names_kernel_and_instruction():
    with pytest.raises(CodegenError, match=r"kernel 'k'.*%1:f32 = sqrt %0"):
        verify(kernel(const(0, 0, I64), Inst("sqrt", (value(0, I64),), value(1))))
