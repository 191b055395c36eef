"""Dispatches for Hopper GPUs as executables: SPIR-V, PTX, or both."""

import pytest
from support.graphs import maps
from support.matrix_units.products import product

from mansard import dims
from mansard.codegen.kernel import warpgroups
from mansard.dims import Dim
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.drivers.vulkan.shaders.abi import BDA, DESCRIPTORS, FORMATS, PTX_FORMAT, ptx_parts
from mansard.drivers.vulkan.shaders.ptx import ptx_entry_points
from mansard.drivers.vulkan.shaders.spirv import entry_points
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir import GraphBuilder
from mansard.ir.scalar import Arg, Cast
from mansard.passes.fusion.fuse import fuse

HOPPER = BACKEND.parse_target("vulkan:h200")


def dispatch(rows, columns=8192, depth=4096):
    """A product of bf16 rows with weights whose columns are contiguous, rounded."""
    b = GraphBuilder()
    x, w = b.input("x", (rows, depth), DType.BF16), b.input("w", (depth, columns), DType.BF16)
    y = product(b, x, w)
    result = Cast(Arg(0, DType.F32), DType.BF16)
    (only,) = fuse(b.build([b.generic([y], [maps(0, 1)], (rows, columns), result)])).dispatches
    return only


def test_a_product_of_any_length_is_both():
    s = Dim("s", 1, 2048)
    compiled = BACKEND.compile_dispatch(dispatch(dims.symbol(s)), HOPPER, "k")
    spec = compiled.spec
    assert spec.format == PTX_FORMAT
    assert "ptx_sm_90a" in spec.requires
    ptx, spirv = ptx_parts(spec)
    assert ptx.threads == warpgroups.THREADS
    assert ptx_entry_points(ptx.code) == entry_points(spirv.code) == {"k"}
    (entry,) = spec.entries
    assert entry.params == len(compiled.params)
    # The last parameter chooses, and the grid is that of the kernel it chooses.
    for length, large in ((1, 0), (2048, 1)):
        assert dims.evaluate(compiled.params[-1], {"s": length}) == large
    assert (
        dims.evaluate(compiled.grid[0], {"s": 2048}) == 2048 // warpgroups.ROWS * 8192 // warpgroups.COLUMNS
    )


def test_a_large_product_is_ptx_alone():
    spec = BACKEND.compile_dispatch(dispatch(2048), HOPPER, "k").spec
    ptx, spirv = ptx_parts(spec)
    assert spirv is None
    assert spec.entries[0].workgroup == (ptx.threads, 1, 1)


@pytest.mark.parametrize(
    ("text", "abi"),
    [("vulkan:h200,-ptx_sm_90a", BDA), ("vulkan:h200+abi=descriptors", DESCRIPTORS), ("vulkan:a100", BDA)],
)
def test_other_targets_get_spirv(text, abi):
    spec = BACKEND.compile_dispatch(dispatch(2048), BACKEND.parse_target(text), "k").spec
    assert spec.format == FORMATS[abi]


def test_listings_show_both():
    only = dispatch(dims.symbol(Dim("s", 1, 2048)))
    listings = BACKEND.listings([(only, BACKEND.compile_dispatch(only, HOPPER, "k"))], HOPPER)
    assert "; k (bda)" in listings["code"]
    assert "; k (ptx)" in listings["code"]
    assert "wgmma" in listings["code"]
    assert "warpgroup_product" in listings["kernels"]


def test_a_kernel_for_a_target_without_it():
    from mansard.codegen import schedules

    kernel = schedules.schedule(dispatch(2048), HOPPER, "k").kernel
    with pytest.raises(CodegenError, match=r"needs ptx_sm_90a, which vulkan:1\.3 lacks"):
        BACKEND.compile_kernel(kernel, BACKEND.parse_target("vulkan:1.3"))
