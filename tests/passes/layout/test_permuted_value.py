"""Permuted values across reshapes: that a form says where every element is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mansard import dims
from mansard.dims import Dim
from mansard.ir.types import IndexMap, Linear
from mansard.passes.layout.permuted_value import PermutedForm


def in_memory(form: PermutedForm, array: np.ndarray) -> np.ndarray:
    """An array's elements in the order of a form, in its dims."""
    return array.reshape(form.parts).transpose(form.order)


@st.composite
def regrouped(draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of the same elements, each a grouping of the same adjacent dims."""
    fine = draw(st.lists(st.sampled_from((1, 2, 3, 4)), min_size=2, max_size=5))

    def grouped() -> tuple[int, ...]:
        shape = [fine[0]]
        for extent in fine[1:]:
            if draw(st.booleans()):
                shape[-1] *= extent
            else:
                shape.append(extent)
        return tuple(shape)

    return grouped(), grouped()


@given(regrouped(), st.randoms(use_true_random=False))
def test_a_reshape_keeps_the_memory(shapes, random) -> None:
    before, after = shapes
    order = list(range(len(before)))
    random.shuffle(order)
    form = PermutedForm.of_dims(before, tuple(order))
    reshaped = form.reshaped(after)
    assert reshaped is not None
    values = np.arange(np.prod(before)).reshape(before)
    np.testing.assert_array_equal(
        in_memory(reshaped, values.reshape(after)).ravel(), in_memory(form, values).ravel()
    )
    assert reshaped.keeps_memory == bool((in_memory(form, values).ravel() == values.ravel()).all())


def test_channels_of_groups_stay_last() -> None:
    image = PermutedForm.of_dims((1, 64, 8, 8), (0, 2, 3, 1))
    groups = image.reshaped((1, 16, 4, 8, 8))
    assert groups is not None and groups.is_whole and groups.shape == (1, 8, 8, 16, 4)
    rows = groups.reshaped((1, 16, 256))
    assert rows is not None and not rows.is_whole and rows.shape == (8, 8, 16, 4)
    assert rows.reshaped((1, 64, 8, 8)) == image


def test_loops_over_merged_dims_read_after_they_are_split() -> None:
    rows = PermutedForm((16, 4, 8), ((), (0,), (1, 2)), (2, 0, 1))  # 1x16x32, in memory 8x16x4
    plain = IndexMap(tuple(map(Linear.dim, range(3))))
    assert rows.reads(plain, (1, 16, 32)) is None
    assert rows.splits(plain, (1, 16, 32)) == {2: (4, 8)}
    split = IndexMap((Linear.dim(0), Linear.dim(1), Linear(((2, 8), (3, 1)))))
    assert rows.reads(split, (1, 16, 4, 8)) == IndexMap((Linear.dim(3), Linear.dim(1), Linear.dim(2)))


def test_no_form_where_dims_have_no_common_parts() -> None:
    assert PermutedForm.of_dims((6, 4), (1, 0)).reshaped((4, 6)) is None
    s = dims.symbol(Dim("s", 1, 64))
    assert PermutedForm.of_dims((s, 4), (1, 0)).reshaped((2, dims.mul(s, 2))) is None
    merged = PermutedForm.of_dims((2, s, 4), (2, 0, 1)).reshaped((dims.mul(s, 2), 4))
    assert merged == PermutedForm.of_dims((dims.mul(s, 2), 4), (1, 0))
