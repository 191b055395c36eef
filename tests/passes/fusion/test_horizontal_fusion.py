"""Products of one input joined into one: what is joined, what stays apart, and the same results."""

import numpy as np
import pytest

from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.dispatch import is_contraction
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather
from mansard.ir.types import Linear
from mansard.ir.verify import verify
from mansard.passes.fusion.horizontal_fusion import fuse_horizontally
from mansard.passes.products.quantisation import quantisation
from mansard.passes.products.weight_only import quantise_weights

F32, I64 = DType.F32, DType.I64
ROWS, DEPTH = 5, 12
PRODUCT = Apply("mul", (Arg(0, F32), Arg(1, F32)), F32)
SUM = Apply("add", (Arg(0, F32), Arg(1, F32)), F32)


class Network:
    """A builder with one input and random constants."""

    def __init__(self):
        self.b, self.random = GraphBuilder(), np.random.default_rng(7)
        self.x = self.b.input("x", (ROWS, DEPTH), F32)

    def constant(self, *shape):
        data = self.random.standard_normal(shape).astype(np.float32)
        return self.b.constant("w", Constant.of(data, f"w{shape}"), shape, F32)

    def product(self, columns, x=None, weight=None, transposed=False):
        x = self.x if x is None else x
        shape = (DEPTH, columns) if transposed else (columns, DEPTH)
        weight = self.constant(*shape) if weight is None else weight
        reads = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1) if transposed else (1, 2))]
        return self.b.generic([x, weight], reads, (ROWS, columns, DEPTH), PRODUCT, reduced=1, combiner="add")

    def biased(self, value):
        rows, columns = value.type.shape
        reads = [IndexMap.identity(2), IndexMap.of_dims((1,))]
        return self.b.generic([value, self.constant(columns)], reads, (rows, columns), SUM)

    def unary(self, op, value):
        return self.b.generic(
            [value], [IndexMap.identity(2)], value.type.shape, Apply(op, (Arg(0, F32),), F32)
        )

    def row_sums(self, value):
        """A reader that needs no copy of its own."""
        rows, columns = value.type.shape
        return self.b.generic(
            [value], [IndexMap.identity(2)], (rows, columns), Arg(0, F32), reduced=1, combiner="add"
        )


def products(graph):
    return [op for op in graph.ops if is_contraction(op)]


def same(graph, merged):
    verify(merged)
    x = np.random.default_rng(1).standard_normal((ROWS, DEPTH)).astype(np.float32)
    for a, b in zip(interpret(graph, [x]), interpret(merged, [x]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("transposed", [False, True])
def test_products_with_their_biases_become_one(transposed):
    n = Network()
    outs = [n.row_sums(n.biased(n.product(c, transposed=transposed))) for c in (8, 4, 16)]
    graph = n.b.build(outs)
    merged = fuse_horizontally(graph)
    (product,) = products(merged)
    assert product.output.type.shape == (ROWS, 28)
    assert len(merged.ops) == 2 + 3 and len(merged.constants) == 2
    same(graph, merged)


def test_products_with_exceptions_become_one():
    """Of a constant that is read at several places, and with maps that read the vector at computed ones."""
    n = Network()
    outs = []
    for columns in (8, 4):
        data = np.exp2(n.random.uniform(-14, 0, (columns, DEPTH))).astype(np.float32)
        data[1, 3], data[columns - 1, 7], data[columns - 1, 2] = 0, 9000, -7000
        weight = n.b.constant("w", Constant.of(data, f"w{columns}"), data.shape, F32)
        outs.append(n.row_sums(n.product(columns, weight=weight)))
    graph = quantise_weights(n.b.build(outs), quantisation("float12", min_elements=1))
    merged = fuse_horizontally(graph)
    (product,) = products(merged)
    assert product.output.type.shape == (ROWS, 12)
    assert sorted(str(v.type.dtype) for v in merged.constants) == ["f32", "i32", "u4", "u8"]
    same(graph, merged)


def test_constants_that_only_one_product_reads_twice_stay_apart():
    """Two of another product, which would become the columns of one, are not one value."""
    n, outs = Network(), []
    for same_value in (True, False):
        first = n.constant(4)
        second = first if same_value else n.constant(4)
        reads = [IndexMap.identity(2), IndexMap.of_dims((1,)), IndexMap.of_dims((1,))]
        body = Apply("add", (SUM, Arg(2, F32)), F32)
        outs.append(n.row_sums(n.b.generic([n.product(4), first, second], reads, (ROWS, 4), body)))
    graph = n.b.build(outs)
    assert fuse_horizontally(graph) is graph


def test_maps_that_read_another_table_stay_apart():
    """A table that a map reads at computed places has no columns."""
    n = Network()
    outs = []
    for _ in range(2):
        value, table = n.product(4), n.constant(16)
        place = Apply("and", (Cast(Arg(0, F32), I64), Const(15, I64)), I64)
        body = Apply("add", (Arg(0, F32), Gather(1, (place,), F32)), F32)
        read = n.b.generic([value, table], [IndexMap.identity(2), None], (ROWS, 4), body)
        outs.append(n.row_sums(read))
    graph = n.b.build(outs)
    assert fuse_horizontally(graph) is graph


def test_readers_behind_reshapes_read_their_columns():
    n = Network()
    heads = []
    for columns in (8, 4):
        value = n.b.reshape(n.product(columns), (ROWS, columns // 4, 4))
        reads = [IndexMap((Linear.dim(1), Linear.dim(0), Linear.dim(2)))]
        heads.append(
            n.b.generic([value], reads, (columns // 4, ROWS, 4), Arg(0, F32), reduced=1, combiner="max")
        )
    graph = n.b.build(heads)
    merged = fuse_horizontally(graph)
    assert len(products(merged)) == 1
    same(graph, merged)


def test_products_whose_results_meet_stay_apart():
    n = Network()
    gate, up = n.product(8), n.product(8)
    reads = [IndexMap.identity(2)] * 2
    joined = n.b.generic([n.unary("exp", gate), up], reads, (ROWS, 8), PRODUCT)
    graph = n.b.build([n.row_sums(joined)])
    assert fuse_horizontally(graph) is graph


def test_results_that_are_needed_by_themselves_stay_apart():
    n = Network()
    graph = n.b.build([n.product(8), n.product(8)])
    assert fuse_horizontally(graph) is graph
    n = Network()  # a reshape that is an output needs its operand in memory
    graph = n.b.build([n.b.reshape(n.product(8), (ROWS * 8,)), n.row_sums(n.product(8))])
    assert fuse_horizontally(graph) is graph


def test_weights_with_other_readers_and_other_inputs_stay_apart():
    n = Network()
    shared = n.constant(8, DEPTH)
    outs = [n.row_sums(n.product(8, weight=shared)), n.row_sums(n.product(4)), n.row_sums(shared)]
    graph = n.b.build(outs)
    assert fuse_horizontally(graph) is graph
    n = Network()
    graph = n.b.build([n.row_sums(n.product(8)), n.row_sums(n.product(8, x=n.unary("exp", n.x)))])
    assert fuse_horizontally(graph) is graph


def test_only_those_stay_apart_that_have_to():
    n = Network()
    y = n.unary("exp", n.x)
    outs = [n.b.reshape(n.product(8), (ROWS * 8,)), n.row_sums(n.product(8))]
    outs += [n.row_sums(n.product(8, x=y)), n.row_sums(n.product(4, x=y))]
    graph = n.b.build(outs)
    merged = fuse_horizontally(graph)
    assert sorted(p.output.type.shape[1] for p in products(merged)) == [8, 8, 12]
    same(graph, merged)


def test_epilogues_may_read_dims_of_one_element_at_zero():
    b = GraphBuilder()
    x, at_zero = b.input("x", (1, DEPTH), F32), IndexMap((Linear(), Linear.dim(1)))
    results = []
    for number in range(2):
        data = np.full((8, DEPTH), number, np.float32)
        w = b.constant("w", Constant.of(data, f"w{number}"), data.shape, F32)
        reads = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2))]
        y = b.generic([x, w], reads, (1, 8, DEPTH), PRODUCT, reduced=1, combiner="add")
        y = b.generic([y], [at_zero], (1, 8), Cast(Arg(0, F32), DType.BF16))
        results.append(b.generic([y], [at_zero], (1, 2), Arg(0, DType.BF16)))
    graph = fuse_horizontally(b.build(results))
    assert [op.output.type.dtype for op in graph.ops][:2] == [F32, DType.BF16]
    assert sum(is_contraction(op) for op in graph.ops) == 1
