"""Symbolic dims: simplification never changes a value, and bounds hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard import dims
from mansard.dims import Dim
from mansard.errors import ArtifactError, ShapeContractError

S = Dim("s", min=1, max=512)
B = Dim("b", min=2, max=64, multiple=2)
SYMBOLS = {"s": S, "b": B}

leaf = st.one_of(st.integers(-20, 20), st.just(dims.symbol(S)), st.just(dims.symbol(B)))


def _combine(children):
    positive = st.integers(1, 9)
    return st.one_of(
        st.tuples(st.sampled_from(["add", "mul", "min", "max"]), children, children),
        st.tuples(st.sampled_from(["floordiv", "mod"]), children, positive),
    )


trees = st.recursive(leaf, _combine, max_leaves=6)
points = st.fixed_dictionaries({"s": st.integers(1, 512), "b": st.integers(1, 32).map(lambda i: 2 * i)})

BUILD = {
    "add": dims.add, "mul": dims.mul, "min": dims.minimum, "max": dims.maximum,
    "floordiv": dims.floordiv, "mod": dims.mod,
}  # fmt: skip
MEANING = {
    "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "min": min, "max": max,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b,
}  # fmt: skip


def build(tree):
    if not isinstance(tree, tuple):
        return tree
    return BUILD[tree[0]](build(tree[1]), build(tree[2]))


def meaning(tree, point):
    if not isinstance(tree, tuple):
        return dims.evaluate(tree, point)
    return MEANING[tree[0]](meaning(tree[1], point), meaning(tree[2], point))


@given(trees, points)
def test_simplification_keeps_the_value(tree, point):
    assert dims.evaluate(build(tree), point) == meaning(tree, point)


@given(trees, points)
def test_bounds_hold(tree, point):
    low, high = dims.bounds(build(tree))
    assert low <= meaning(tree, point) <= high


@given(trees, points)
def test_text_reads_back_as_the_same_value(tree, point):
    expr = build(tree)
    text = expr if isinstance(expr, int) else str(expr)
    assert dims.evaluate(dims.parse(text, SYMBOLS), point) == meaning(tree, point)


@given(trees, trees, points)
def test_exact_division_is_exact(a, b, point):
    quotient = dims.exact_div(build(a), build(b))
    if quotient is not None and meaning(b, point) != 0:
        assert dims.evaluate(quotient, point) * meaning(b, point) == meaning(a, point)


def test_bounds_decide_what_frontends_leave_behind():
    s = dims.symbol(S)
    assert dims.minimum(s, 0) == 0
    assert dims.maximum(dims.add(s, -1), 0) == dims.add(s, -1)
    assert dims.floordiv(dims.mul(s, 2048), dims.mul(s, 128)) == 16
    assert dims.mod(dims.mul(s, 64), 16) == 0
    assert dims.mod(dims.symbol(B), 2) == 0


def test_contract_errors_name_dim_value_and_range():
    with pytest.raises(ShapeContractError, match=r"ids: dim 's' is 600; .* 1 to 512"):
        S.check(600, "ids")
    with pytest.raises(ShapeContractError, match=r"dim 'b' is 7; .* multiples of 2"):
        B.check(7, "ids")


@pytest.mark.parametrize("text", ["__import__('os')", "s.real", "s ** 2", "t + 1", "min(s)", "s +", "[1]"])
def test_foreign_text_is_refused(text):
    with pytest.raises(ArtifactError, match="not a dim expression"):
        dims.parse(text, SYMBOLS)


def test_the_literal_of_an_expression():
    n = dims.symbol(Dim("n", 1, 64))
    assert [dims.literal(v) for v in (7, n, 2 * n + 3, n * n - 5, dims.floordiv(n, 2))] == [7, 0, 3, -5, 0]


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        ((5, 4), "no value is at least 0 and from 5 to 4"),
        ((-1, 4), "from -1 to 4"),
        ((1, 3, 4), "no value that is a multiple of 4"),
        ((1, 3, 0), "multiple=0"),
    ],
)
def test_a_contract_that_no_value_keeps(contract, message):
    with pytest.raises(ShapeContractError, match=message):
        Dim("n", *contract)
    assert Dim("n", 0, 0).max == 0
    assert Dim("n", 1, 4, 4).multiple == 4
