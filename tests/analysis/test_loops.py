"""Refinement and collapsing of loops, checked against plain index arithmetic."""

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mansard import dims
from mansard.analysis.loops import collapse, delinearize, linearize, refine, strides
from mansard.dims import Dim
from mansard.ir.types import Linear

shapes = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(shapes, st.data())
def test_refinement_groups_into_both_shapes(shape, data):
    cuts = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    merged = []
    for extent, cut in zip(shape, cuts, strict=True):
        if merged and not cut:
            merged[-1] *= extent
        else:
            merged.append(extent)
    refined = refine(shape, merged)
    assert refined is not None
    assert math.prod(refined) == math.prod(shape)
    for other in (shape, merged):
        bounds = set(itertools.accumulate(refined, lambda a, b: a * b, initial=1))
        assert set(itertools.accumulate((d for d in other), lambda a, b: a * b, initial=1)) <= bounds


def test_shapes_without_a_common_refinement():
    assert refine((6, 4), (4, 6)) is None
    assert refine((6, 4), (2, 3, 4)) == (2, 3, 4)


def test_symbolic_refinement():
    s = dims.symbol(Dim("s", 1, 512))
    assert refine((s, 2048), (1, s, 16, 128)) == (s, 16, 128)
    assert refine((dims.mul(s, 2),), (2, s)) == (2, s)


@given(shapes, st.data())
def test_delinearize_inverts_linearize(shape, data):
    cuts = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    merged = []
    for extent, cut in zip(shape, cuts, strict=True):
        if merged and not cut:
            merged[-1] *= extent
        else:
            merged.append(extent)
    loops = [Linear.dim(i) for i in range(len(shape))]
    indices = delinearize(linearize(loops, shape), shape, merged)
    assert indices is not None
    for point in np.ndindex(*shape):
        index = tuple(sum(c * point[d] for d, c in f.terms) + f.offset for f in indices)
        assert np.ravel_multi_index(index, merged) == np.ravel_multi_index(point, shape)


def test_an_index_that_would_carry_has_no_plain_form():
    # One loop over 6 elements crosses rows of a (3, 2) shape.
    assert delinearize(Linear.dim(0), (6,), (3, 2)) is None
    # An offset may push a loop over the end of a row.
    assert delinearize(Linear.dim(0, 1, 1), (2,), (3, 2)) is None


def test_a_loop_over_a_part_of_a_dim_has_a_plain_form():
    # 12 of 256 rows, then rows of two parts.
    loops = [Linear.dim(i) for i in range(3)]
    flat = linearize(loops, (2, 256, 8))
    assert delinearize(flat, (2, 12, 8), (2, 1, 256, 8)) == (loops[0], Linear(), loops[1], loops[2])
    # Rows from the third on, of which five fit; of six the last would carry.
    shifted = linearize([Linear.dim(0), Linear.dim(1, 1, 3)], (4, 8))
    assert delinearize(shifted, (4, 5), (4, 8)) == (Linear.dim(0), Linear.dim(1, 1, 3))
    assert delinearize(shifted, (4, 6), (4, 8)) is None


def test_collapse_needs_every_address_to_agree():
    row_major = linearize([Linear.dim(0), Linear.dim(1)], (4, 8))
    assert collapse((4, 8), [row_major]) == [[0, 1]]
    assert collapse((4, 8), [row_major, Linear.dim(1)]) == [[0], [1]]


def test_strides():
    assert strides((2, 3, 4)) == (12, 4, 1)


def test_loops_a_read_ignores_collapse():
    row_major = linearize([Linear.dim(0), Linear.dim(1)], (4, 8))
    assert collapse((4, 8), [row_major, Linear()]) == [[0, 1]]


def test_an_index_that_runs_backwards_has_no_plain_form():
    # 3 - d0 over 3 values in a (2, 3) shape crosses rows: 1*3+0, 0*3+2, 0*3+1.
    assert delinearize(Linear.dim(0, -1, 3), (3,), (2, 3)) is None


def test_an_index_that_runs_backwards_within_a_dim_has_a_plain_form():
    # The other half of a vector: 1 - d0 halves of 4 elements, in rows of 8.
    flat = Linear(((0, 8), (1, -4), (2, 1)), 4)
    row, place = delinearize(flat, (3, 2, 4), (3, 8))
    assert row == Linear.dim(0) and place == Linear(((1, -4), (2, 1)), 4)
    # All of a dim, last element first.
    assert delinearize(Linear(((0, 3), (1, -1)), 2), (2, 3), (2, 3)) == (Linear.dim(0), Linear.dim(1, -1, 2))


def test_a_loop_of_one_iteration_fits_any_shape():
    # A reduction to one element, read as a line of one.
    assert delinearize(Linear.dim(2), (2, 2, 1), ()) == ()
    assert delinearize(Linear(((0, 1), (1, 7))), (3, 1), (3,)) == (Linear.dim(0),)
