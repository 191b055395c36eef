"""PTX of kernels: what a driver is given. No driver here compiles it; kernels that ran are recorded under
benchmarks/results."""

import re

import pytest

from mansard.codegen.kernel import KernelBuilder, warpgroups
from mansard.codegen.nvptx import warpgroup_product
from mansard.codegen.nvptx.module import ptx
from mansard.dtypes import DType
from mansard.errors import CodegenError


def builder(workgroup=64, params=1, source=DType.F32):
    bindings = [(source, False), (source, False), (DType.BF16, True)]
    return KernelBuilder("k", bindings, params, workgroup=(workgroup, 1, 1), index=DType.I32)


def test_an_entry_takes_the_argument_table_by_value():
    b = builder(params=2)
    at = b.add(b.mul(b.workgroup_id(0), b.idx(64)), b.add(b.local_id(0), b.param(1)))
    b.store(b.bindings[2], at, b.cast(b.load(b.bindings[0], at), DType.BF16))
    text = ptx(b.build())
    assert ".target sm_90a" in text
    assert ".visible .entry k(" in text
    assert "k_param_0[40]" in text  # three addresses and two params
    assert ".maxntid 64" in text
    assert "%ctaid.x" in text
    assert "%tid.x" in text
    assert re.search(r"ld\.param\.b64\s+%rd\d+, \[k_param_0\+16\]", text)
    assert re.search(r"ld\.global(\.nc)?\.b32", text)
    assert "cvt.rn.bf16.f32" in text
    assert "st.global.b16" in text


def test_workgroup_memory_barriers_and_subgroups():
    b = builder()
    memory = b.shared(DType.F32, 64)
    lane, group = b.subgroup_place("subgroup_lane"), b.subgroup_place("subgroup_id")
    b.store(memory, b.local_id(0), b.load(b.bindings[0], lane))
    b.barrier("subgroup")
    value = b.load(memory, b.binary("xor", b.local_id(0), b.idx(1)))
    b.barrier()
    b.store(b.bindings[2], b.add(b.mul(group, b.idx(32)), lane), b.cast(value, DType.BF16))
    text = ptx(b.build())
    assert re.search(r"\.shared \.align 1024 \.b8 \S*shared0\S*\[256\]", text)
    assert "st.shared.b32" in text
    assert text.index("bar.warp.sync") < text.index("ld.shared.b32") < text.index("bar.sync 0")


@pytest.mark.parametrize(
    ("combiner", "loses_nan", "redux", "shuffles"),
    [
        ("max", True, ["max.s32"], 0),
        ("min", True, ["min.s32"], 0),
        ("max", False, [], 5),
        ("add", False, [], 5),
    ],
)
def test_reductions_of_floats_over_a_subgroup(combiner, loses_nan, redux, shuffles):
    b = builder()
    value = b.subgroup_reduce(combiner, b.load(b.bindings[0], b.local_id(0)), loses_nan=loses_nan)
    b.store(b.bindings[2], b.local_id(0), b.cast(value, DType.BF16))
    text = ptx(b.build())
    assert re.findall(r"redux\.sync\.(\S+)", text) == redux
    assert len(re.findall(r"shfl\.sync", text)) == shuffles
    assert text.count("max.NaN.f32") == (5 if (combiner, loses_nan) == ("max", False) else 0)


@pytest.mark.parametrize("combiner", ["add", "min", "max"])
def test_reductions_of_integers_over_a_subgroup(combiner):
    b = builder(source=DType.I32)
    value = b.subgroup_reduce(combiner, b.load(b.bindings[0], b.local_id(0)))
    b.store(b.bindings[2], b.local_id(0), b.cast(b.cast(value, DType.F32), DType.BF16))
    assert re.findall(r"redux\.sync\.(\S+)", ptx(b.build())) == [f"{combiner}.s32"]


@pytest.mark.parametrize(
    ("part", "steps"),
    [({"cluster": 2}, [1]), ({"cluster": 8}, [4, 2, 1]), ({"stride": 4}, [16, 8, 4]), ({"stride": 32}, [])],
    ids=str,
)
def test_reductions_over_a_part_of_a_subgroup(part, steps):
    """Shuffles between its invocations alone; other parts have other results."""
    b = builder()
    value = b.subgroup_reduce("max", b.load(b.bindings[0], b.local_id(0)), loses_nan=True, **part)
    b.store(b.bindings[2], b.local_id(0), b.cast(value, DType.BF16))
    shuffles = re.findall(r"shfl\.sync\.bfly\.b32\s+%r\d+(?:\|%p\d+)?, %r\d+, (\d+),", ptx(b.build()))
    assert [int(step) for step in shuffles] == steps
    b = builder()
    value = b.subgroup_reduce("max", b.load(b.bindings[0], b.local_id(0)), **part)
    with b.if_(b.compare("lt", value, b.const(1.0, DType.F32))):
        b.store(b.bindings[2], b.idx(0), b.cast(b.subgroup_reduce("add", value), DType.BF16))
    with pytest.raises(CodegenError, match="in part of a subgroup"):
        ptx(b.build())


def test_the_larger_of_two_numbers_is_one_instruction():
    b = builder()
    x, y = (b.load(b.bindings[n], b.local_id(0)) for n in range(2))
    b.store(b.bindings[2], b.local_id(0), b.cast(b.larger(x, y), DType.BF16))
    text = ptx(b.build())
    assert len(re.findall(r"max(\.NaN)?\.f32", text)) == 1 and "setp" not in text


def test_pairs_of_bf16_are_halves_of_words():
    b = builder(source=DType.BF16)
    at = b.mul(b.local_id(0), b.idx(8))
    numbers = b.cast(b.load(b.bindings[0], at, 8, aligned=True), DType.F32)
    b.store(b.bindings[2], at, b.cast(b.mul(numbers, b.const(3.0, DType.F32, 8)), DType.BF16), aligned=True)
    text = ptx(b.build())
    assert text.count("shl.b32") >= 4 and text.count("-65536") == 4
    assert "b16" not in re.sub(r"cvt\S+", "", text), "no element by itself"


def test_bytes_are_joined_in_three_instructions():
    b = builder(source=DType.I32)
    at = b.mul(b.local_id(0), b.idx(4))
    words = [b.load(b.bindings[0], b.add(at, b.idx(n))) for n in range(4)]
    b.store(b.bindings[2], at, b.cast(b.cast(b.join_bytes(words), DType.F32), DType.BF16))
    assert ptx(b.build()).count("prmt.b32") == 3


def test_what_is_early_is_not_computed_where_it_is_used():
    b = builder()
    quotient = b.early(b.binary("div", b.param(0), b.add(b.local_id(0), b.idx(1))))
    b.barrier()
    b.store(b.bindings[2], quotient, b.const(1.0, DType.BF16))
    text = ptx(b.build())
    assert text.index("div.s32") < text.index("bar.sync")


def product(dtype, steps=None, along="depth"):
    b = builder(warpgroups.THREADS, source=dtype)
    memory = b.shared(DType.F32, warpgroups.SHARED_BYTES // 4)
    thread = b.local_id(0)
    rows = b.add(
        b.mul(b.binary("shr", thread, b.idx(3)), b.idx(640)),
        b.mul(b.binary("and", thread, b.idx(7)), b.idx(8)),
    )
    left = [b.add(rows, b.idx(i * 32 * 640)) for i in range(warpgroups.LEFT)]
    right = [b.add(rows, b.idx(i * 32 * 640)) for i in range(warpgroups.RIGHT)]
    factors = (b.bindings[0], left), (b.bindings[1], right)
    count = b.idx(10) if steps is None else steps(b)
    sums = warpgroups.product(b, *factors, count, b.idx(64), memory, along=along)
    b.store(b.bindings[2], thread, b.cast(b.extract(sums, 5), DType.BF16))
    return b.build()


@pytest.mark.parametrize(("dtype", "name"), [(DType.BF16, "bf16"), (DType.F16, "f16")])
def test_the_products_of_a_step(dtype, name):
    text = ptx(product(dtype))
    slots, depth = warpgroup_product.SLOTS, warpgroups.DEPTH // warpgroup_product.MATRIX_DEPTH
    assert text.count(f"wgmma.mma_async.sync.aligned.m64n64k16.f32.{name}.{name}") == slots * depth
    assert text.count("ldmatrix.sync.aligned.m8n8.x4") == depth
    # Three slots and the left factor before the loop, all of a step in it.
    right, left = warpgroups.RIGHT // slots, warpgroups.LEFT
    assert text.count("cp.async.cg.shared.global") == (2 * slots - 1) * right + 2 * left
    assert text.count("prefetch.global.L2") == warpgroups.RIGHT
    assert re.search(r"\.shared \.align 1024 \.b8 \S*shared0\S*\[49152\]", text)


def test_every_slot_is_refilled_for_the_step_that_reads_it_next():
    """Copies in the loop are for the step after, but those into the last slot, which are for the present."""
    code, _ = warpgroup_product.assembly(DType.BF16, "depth")
    loop = code[code.index("LOOP:") :]
    copies = re.findall(
        r"add\.s64 from, \$\d+, (\w+);\n\S* ?cp\.async\S* \[target\+(\d+)\], \[from\+(\d+)\], 16", loop
    )
    assert len({place for _, place, _ in copies}) == len(copies) == warpgroups.LEFT + warpgroups.RIGHT
    for offset, place, further in copies:
        slot = (int(place) - warpgroup_product.RING) // warpgroup_product.SLOT_BYTES
        if slot < 0:
            assert (offset, int(further)) == ("offset", warpgroup_product.ROW_BYTES)
        else:
            assert offset == ("now" if slot == warpgroup_product.SLOTS - 1 else "then")


@pytest.mark.parametrize(("along", "depth"), [("depth", 32), ("side", 2048)])
def test_matrices_of_a_slot(along, depth):
    """16 elements of the depth are 32 bytes further in rows, or 16 rows of 128 bytes."""
    code, _ = warpgroup_product.assembly(DType.BF16, along)
    places = [16 * int(n) for n in re.findall(r"add\.s64 slot, slots, (\d+);", code)]
    slots = range(warpgroup_product.SLOTS)
    assert places == [slot * warpgroup_product.SLOT_BYTES + k * depth for slot in slots for k in range(4)]
    assert code.count(f"slot, 1, 1, 1, {int(along == 'side')};") == len(places)


def test_what_has_no_ptx_says_so():
    b = builder()
    b.store(
        b.bindings[2],
        b.local_id(0),
        b.cast(b.subgroup_scan("add", b.load(b.bindings[0], b.local_id(0))), DType.BF16),
    )
    with pytest.raises(CodegenError, match="no PTX for instruction 'subgroup_scan'"):
        ptx(b.build())
    with pytest.raises(CodegenError, match="whole subgroups"):
        ptx(builder(workgroup=33).build())


def test_rules_of_the_instruction():
    with pytest.raises(CodegenError, match="no product of f32"):
        ptx(product(DType.F32))
    with pytest.raises(CodegenError, match="scalar i32 or i64"):
        ptx(product(DType.BF16, lambda b: b.const(1.0, DType.F32)))


def test_branches_for_two_emitters():
    b = builder(params=1)
    large = b.compare("eq", b.param(0), b.idx(1))
    memories = [b.shared(DType.F32, 8), b.shared(DType.F32, 16)]
    for memory, op in zip(memories, ("sqrt", "floor"), strict=True):
        with b.if_(large):
            b.store(memory, b.idx(0), b.unary(op, b.const(2.0, DType.F32)))
    kernel = b.build()
    left = warpgroups.without(kernel, {"sqrt"})
    assert kernel.body.uses({"sqrt"})
    assert not left.body.uses({"sqrt"})
    assert left.body.uses({"floor"})
    assert left.shared == (memories[1],)
