"""Bodies of kernels for persistent kernels: PTX statements without a function around them."""

import dataclasses
import re

import pytest
from support.kernels.norm_products import products

from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.nvptx.module import ptx
from mansard.codegen.nvptx.persistent import NEXT, REGISTERS, WAIT, body
from mansard.codegen.schedules import schedule
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.dtypes import DType
from mansard.errors import CodegenError

H200 = BACKEND.parse_target("vulkan:h200")
F32, I32, BF16 = DType.F32, DType.I32, DType.BF16


def builder(workgroup=64, source=F32):
    return KernelBuilder("k", [(source, False), (F32, True)], 0, workgroup=(workgroup, 1, 1), index=I32)


def reduction(b):
    """Sums of subgroups, one element of each invocation."""
    at = b.add(b.mul(b.workgroup_id(0), b.idx(64)), b.local_id(0))
    return at, b.subgroup_reduce("add", b.load(b.bindings[0], at))


def test_a_body_reads_registers_and_ends_at_a_label():
    b = builder()
    memory = b.shared(F32, 65)
    at, total = reduction(b)
    b.store(memory, b.local_id(0), total)
    b.barrier()
    b.store(b.bindings[1], at, b.load(memory, b.idx(0)))
    made = body(b.build())
    assert (made.threads, made.shared, made.stream) == (64, 384, None)
    assert made.text.count("{") == made.text.count("}")
    assert not re.search(r"\bret\b|\.param|\.func|%tid|%ctaid", made.text)
    assert "bra JOIN;" in made.text
    read = set(re.findall(r"mov\.b(?:32|64)\s+%\w+, (\w+);", made.text)) & REGISTERS.keys()
    assert read == REGISTERS.keys() - {"polls"}, "nothing is exchanged"
    assert re.search(r"bar\.sync %r\d+, 64;", made.text), "a workgroup may be a part of a block"
    assert made.text.count("shfl.sync.bfly") == 5


def test_workgroups_of_a_block_take_turns():
    """The loop over workgroups waits for the workgroup's memory, where it has some."""
    b = builder()
    at, total = reduction(b)
    b.store(b.bindings[1], at, total)
    assert "bar.sync" not in body(b.build()).text


@pytest.mark.parametrize("op", ["subgroup_reduce", "stream_next"])
def test_what_a_part_of_a_subgroup_reaches_has_no_ptx(op):
    b = builder()
    with b.if_(b.compare("lt", b.local_id(0), b.idx(16))):
        if op == "stream_next":
            b.stream_next()
        else:
            b.store(b.bindings[1], b.idx(0), b.subgroup_reduce("add", b.const(1.0, F32)))
    with pytest.raises(CodegenError, match="in part of a subgroup"):
        body(b.build())


@pytest.mark.parametrize("size", [32, 64])
def test_whole_subgroups_may_branch(size):
    b = builder(128)
    with b.if_(b.compare("lt", b.binary("div", b.local_id(0), b.idx(size)), b.idx(1))):
        b.store(b.bindings[1], b.idx(0), b.subgroup_reduce("add", b.const(1.0, F32)))
    assert "shfl" in body(b.build()).text


def test_a_loop_that_ends_at_different_times_in_a_subgroup():
    b = builder()
    with b.for_(b.local_id(0), b.idx(80), b.idx(64)):
        b.store(b.bindings[1], b.idx(0), b.subgroup_reduce("add", b.const(1.0, F32)))
    with pytest.raises(CodegenError, match="in part of a subgroup"):
        body(b.build())


def test_words_are_loaded_at_once_and_unpacked():
    b = builder(source=BF16)
    words = b.load_words(b.bindings[0], b.mul(b.local_id(0), b.idx(8)), 4)
    b.store(b.bindings[1], b.mul(b.local_id(0), b.idx(8)), b.unpack(words, BF16, 0, 8))
    text = body(b.build()).text
    assert re.search(r"ld\.global(\.nc)?\.v4\.b32", text)
    assert "shl.b32" in text and "-65536" in text


def test_a_product_waits_for_its_weights():
    (dispatch,) = lower_graph(products(1, 64, 4096, BF16, gated=True), _options()).dispatches
    kernel = schedule(dispatch, H200, "k").kernel
    made = body(kernel)
    assert made.stream == kernel.streamed.stream
    assert made.text.count(f"{WAIT} ") == made.text.count(f"{NEXT};") == 1
    wait, following = made.text.index(WAIT), made.text.index(NEXT)
    between = re.findall(r"ld\.shared\.v4", made.text[wait:following])
    assert len(between) == 4, "a slot of 2 KiB is four loads of 16 bytes of 32 invocations"
    assert "stream." not in body(dataclasses.replace(kernel, streamed=None)).text


def test_streams_are_for_persistent_kernels():
    (dispatch,) = lower_graph(products(1, 64, 1024, BF16), _options()).dispatches
    streamed = schedule(dispatch, H200, "k").kernel.streamed
    with pytest.raises(CodegenError, match="only persistent kernels read streams"):
        ptx(streamed.kernel)


def _options():
    return CompileOptions(targets=("vulkan:h200",))
