"""Products with integers that a model already has: what they are multiplied with is rounded on request."""

import numpy as np
import pytest
from support import graph_runner
from support.decoders.quantised_weights import Form, graph_of, inputs_of

import mansard
from mansard.dims import Dim, symbol
from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.dispatch import is_contraction
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Generic
from mansard.ir.quantised_weight import GroupFactor, QuantisedWeight, chosen_product
from mansard.ir.scalar import Apply, Arg, Cast, Const, Index
from mansard.ir.verify import verify
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps
from mansard.passes.products.weight_only import quantise_weights

F32, BF16, I4, U4, I8, I64 = DType.F32, DType.BF16, DType.I4, DType.U4, DType.I8, DType.I64
HOW = mansard.quantize("stored", activations="int8")
RNG = np.random.default_rng(4)
FORMS = [
    Form(48, 128, 32),
    Form(37, 96, 32, I4, BF16),
    Form(40, 256, 16, I8, BF16, scale=DType.F16),
    Form(33, 256, 32, U4, BF16, offsets=True, nested=True),
    Form(17, 60, 60, I8, F32, F32),
    Form(24, 96, 32, U4, F32, zeros=DType.U8),
]


def contraction(graph):
    (op,) = (op for op in graph.ops if is_contraction(op))
    assert isinstance(op, Generic)
    return op


def rounded(graph, **options):
    after = quantise_weights(run_passes(graph, canonical_steps()), HOW, **options)
    verify(after)
    return after


def close(graph, after, inputs, limit=0.02):
    (before,), (result,) = interpret(graph, inputs), interpret(after, inputs)
    assert 0 < np.abs(result - before).max() / np.abs(before).max() < limit
    for wanted, ours in zip((result,), graph_runner.run(after, inputs, "cpu"), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("rows", [1, 5])
def test_x_is_rounded_in_the_groups_of_the_weights(form, rows):
    graph = graph_of(form, rows)
    after = rounded(graph)
    op = contraction(after)
    types = [v.type for v in op.inputs]
    assert "x" not in {v.name for v in op.inputs} and I8 in {t.dtype for t in types}
    assert (rows, form.k // form.group) in {t.shape for t in types if t.dtype is F32}
    close(graph, after, inputs_of(form, rows))


def test_any_number_of_rows():
    rows = symbol(Dim("rows", 1, 64))
    after = rounded(graph_of(FORMS[0], rows))
    inputs = inputs_of(FORMS[0], 7)
    for wanted, ours in zip(interpret(after, inputs), graph_runner.run(after, inputs, "cpu"), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-4)


def stack(partial):
    """Products of two rows with three matrices each, some of which may be none."""
    b = GraphBuilder()
    x, numbers = b.input("x", (2, 128), BF16), b.input("numbers", (2, 3), I64)
    codes = RNG.integers(-8, 8, (5, 48, 128)).astype(I4.numpy)
    scales = RNG.random((5, 48, 4)).astype(np.float16)
    weight = QuantisedWeight(
        b.constant("codes", Constant.of(codes, "codes"), codes.shape, I4),
        (GroupFactor(b.constant("scales", Constant.of(scales, "scales"), scales.shape, DType.F16), 32),),
    )
    number, zero = Arg(1, I64), Const(0, I64)
    read = (x, IndexMap.of_dims((0, 3))), (numbers, IndexMap.of_dims((0, 1)))
    row = Apply("max", (number, zero), I64) if partial else number, Index(2)
    op = chosen_product(
        weight, read, Cast(Arg(0, BF16), F32), (2, 3, 48), (), row, b.value("y", (2, 3, 48), F32)
    )
    if partial:
        here = Apply("ge", (number, zero), DType.BOOL)
        op = Generic(
            op.inputs, op.outputs, op.extents, op.maps,
            Apply("select", (here, op.body, Const(0.0, F32)), F32), "add",
        )  # fmt: skip
    graph = b.build([b.append(op)])
    x = RNG.standard_normal((2, 128), np.float32).astype(BF16.numpy)
    return graph, [x, np.array([[1, -1 if partial else 4, 2], [0, 3, -1 if partial else 1]])]


@pytest.mark.parametrize("partial", [False, True])
def test_factors_of_chosen_matrices(partial):
    graph, inputs = stack(partial)
    after = rounded(graph)
    assert "x" not in {v.name for v in contraction(after).inputs}
    close(graph, after, inputs)
    kept = rounded(graph, few_rows=True)  # for GPUs alone
    assert "x" in {v.name for v in contraction(kept).inputs}


def test_gpus_round_few_rows():
    for rows in (4, 5):
        after = rounded(graph_of(FORMS[0], rows), few_rows=True)
        assert ("x" in {v.name for v in contraction(after).inputs}) is (rows > 4)


def test_models_without_integers_stay_as_they_are():
    b = GraphBuilder()
    x = b.input("x", (2, 64), F32)
    w = b.constant("w", Constant.of(np.ones((16, 64), np.float32), "w"), (16, 64), F32)
    maps = (IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2)))
    body = Apply("mul", (Arg(0, F32), Arg(1, F32)), F32)
    graph = b.build([b.generic((x, w), maps, (2, 16, 64), body, reduced=1, combiner="add")])
    assert quantise_weights(graph, HOW) is graph


@pytest.mark.parametrize(
    "options", [{}, {"activations": "int8", "group_size": 32}, {"activations": "int8", "keep": ["a"]}]
)
def test_what_stored_takes(options):
    with pytest.raises(CompileError, match="takes activations='int8' and nothing else"):
        mansard.quantize("stored", **options)
