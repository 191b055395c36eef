"""Packed constants: the order of their elements, and the tiles that read them."""

import numpy as np
import pytest
from support.graphs import F32, matmul

from mansard.codegen.llvm.target import parse
from mansard.codegen.schedules.cpu.gemm_tile import RegisterTile, tiles
from mansard.ir import Constant, GraphBuilder
from mansard.ir.panels import Panels
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.packable import mark_packable

RNG = np.random.default_rng(5)


def test_panels_hold_columns_side_by_side_and_end_in_zeros():
    dense = RNG.standard_normal((5, 7)).astype(np.float32)  # reduced x columns
    panels = Panels((7, 1), ((5, 7),), width=4)
    packed = panels.pack(dense)
    assert packed.shape == panels.shape == (2, 5, 4)
    np.testing.assert_array_equal(packed[0], dense[:, :4])
    np.testing.assert_array_equal(packed[1, :, :3], dense[:, 4:])
    assert not packed[1, :, 3].any()


def test_panels_follow_the_loops_not_the_dims():
    dense = RNG.standard_normal((6, 2, 3, 3)).astype(np.float32)  # filters, channels, window
    panels = Panels((6, 18), ((3, 3), (3, 1), (2, 9)), width=4)
    packed = panels.pack(dense)
    expected = dense.transpose(2, 3, 1, 0).reshape(18, 6)
    np.testing.assert_array_equal(packed[0], expected[:, :4])
    np.testing.assert_array_equal(packed[1, :, :2], expected[:, 4:])


def test_groups_put_reduced_positions_side_by_side():
    dense = np.arange(15, dtype=np.int8).reshape(5, 3)
    packed = Panels((3, 1), ((5, 3),), width=4, group=2).pack(dense)
    assert packed.shape == (1, 3, 4, 2)
    np.testing.assert_array_equal(packed[0, 1, 2], [dense[2, 2], dense[3, 2]])
    np.testing.assert_array_equal(packed[0, 2, 0], [dense[4, 0], 0])


def test_groups_begin_anew_with_every_run_of_the_innermost_loop():
    dense = np.arange(18, dtype=np.int8).reshape(2, 3, 3)  # rows of taps, taps, columns
    panels = Panels((3, 1), ((2, 9), (3, 3)), width=4, group=4)
    assert (panels.run, panels.depth) == (4, 8)
    packed = panels.pack(dense)
    assert packed.shape == panels.shape == (1, 2, 4, 4)
    np.testing.assert_array_equal(packed[0, 1, 2], [*dense[1, :, 2], 0])


def test_halves_of_groups_alternate():
    dense = np.arange(48, dtype=np.int8).reshape(16, 3)
    plain, halves = (Panels((3, 1), ((16, 3),), width=4, group=8, parts=p) for p in (1, 2))
    packed = halves.pack(dense)
    assert packed.shape == plain.shape == (1, 2, 4, 8)
    np.testing.assert_array_equal(packed[..., 0::2], plain.pack(dense)[..., :4])
    np.testing.assert_array_equal(packed[..., 1::2], plain.pack(dense)[..., 4:])


def test_quarters_of_groups_alternate():
    """Neighbours lie in the two halves of a word of eight integers of 4 bits."""
    dense = np.arange(16, dtype=np.int8).reshape(16, 1)
    packed = Panels((1, 1), ((16, 1),), width=1, group=8, parts=4).pack(dense).reshape(2, 2, 4)
    assert packed[0].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]] and (packed[1] == packed[0] + 8).all()


def test_only_constants_with_one_reader_may_be_packed():
    b = GraphBuilder()
    x = b.input("x", (8, 4), F32)
    packable, shared = (
        b.constant(n, Constant.of(np.ones((4, 16), np.float32), n), (4, 16), F32) for n in ("own", "shared")
    )
    y, *others = (matmul(b, x, w) for w in (packable, shared, shared))
    z = b.input("z", (16, 8), F32)
    graph = mark_packable(fuse(b.build([y, *others, matmul(b, z, others[0])])))
    assert {v.name for d in graph.dispatches for v in d.packable} == {"own"}


@pytest.mark.parametrize("target", ["cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64", "cpu:aarch64"])
@pytest.mark.parametrize("shape", [(49, 960, 160), (1, 1280, 1000), (12544, 32, 16), (128, 384, 1536)])
def test_tiles_fit_the_registers_and_come_back_from_their_parameters(target, shape):
    rows, depth, columns = shape
    kernel_target = parse(target).kernel_target()
    candidates = tiles(rows, columns, depth, kernel_target)
    assert len(set(candidates)) == len(candidates)
    for tile in candidates:
        assert tile.rows <= rows
        assert tile.rows * tile.columns + tile.columns + 1 <= kernel_target.vector_registers
        assert RegisterTile.of(tile.parameters(), kernel_target) == tile


def test_rows_are_divided_without_waste_where_tiles_allow_it():
    target = parse("cpu:x86-64-v4").kernel_target()
    assert tiles(49, 960, 160, target)[0].rows == 7
    assert 128 % tiles(128, 1536, 384, target)[0].rows == 0


def test_matrices_of_a_stack_are_packed_one_by_one():
    dense = np.arange(3 * 8 * 10).reshape(3, 8, 10)
    one = Panels((8, 10), ((10, 1),), width=4, group=2)
    stack = Panels((8, 10), ((10, 1),), width=4, group=2, matrices=3)
    packed = stack.pack(dense)
    assert packed.shape == stack.shape == (6, 5, 4, 2)
    assert np.array_equal(packed, np.concatenate([one.pack(matrix) for matrix in dense]))
