"""Rules answer as ONNX's reference evaluator does, by the interpreter of the Graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import mansard
from mansard.api.results import result_builder
from mansard.errors import UnsupportedOpError
from mansard.frontends.emission.unsupported import ContentNeededError
from mansard.frontends.onnx.importer import import_onnx
from mansard.ir.interpreter.graph import interpret

RNG = np.random.default_rng(5)


def model_of(text: str, opset: int = 21) -> onnx.ModelProto:
    """A model of the text of its graph."""
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')


def floats(*shape: int) -> np.ndarray[Any, Any]:
    """Normally distributed numbers."""
    return RNG.standard_normal(shape).astype(np.float32)


def expect(text: str, *inputs: np.ndarray[Any, Any], opset: int = 21, **options: Any) -> None:
    """Compare all results of the model's text."""
    model = model_of(text, opset)
    names = [value.name for value in model.graph.input]
    expected = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    graph = import_onnx(model, **options)
    taken = {
        value.name: array for value, array in zip(graph.inputs, _kept(names, inputs, options), strict=True)
    }
    actual = interpret(graph, taken)
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def _kept(names: list[str], inputs: Any, options: dict[str, Any]) -> list[Any]:
    fixed = options.get("constants", {})
    return [array for name, array in zip(names, inputs, strict=True) if name not in fixed]


CASES = {
    "mod": (
        "(int32[6] a, int32[6] b) => (int32[6] y) { y = Mod(a, b) }",
        "ii",
    ),
    "logsumexp": (
        "(float[3, 4] a) => (float[3, 1] y) { i = Constant<value_ints = [1]>() y = ReduceLogSumExp(a, i) }",
        "f",
    ),
    "last extreme": (
        "(float[3, 4] a) => (int64[3] y) { y = ArgMax<axis = 1, keepdims = 0, select_last_index = 1>(a) }",
        "f",
    ),
    "running": (
        "(float[3, 4] a) => (float[3, 4] y) "
        "{ i = Constant<value_int = 1>() y = CumSum<reverse = 1, exclusive = 1>(a, i) }",
        "f",
    ),
    "grouped": (
        "(float[1, 4, 7] a, float[6, 2, 3] b) => (float[1, 6, 4] y) "
        "{ y = Conv<group = 2, strides = [2], pads = [1, 1]>(a, b) }",
        "ff",
    ),
    "transposed": (
        "(float[1, 2, 4, 4] a, float[2, 3, 3, 3] b) => (float[1, 3, 9, 9] y) "
        "{ y = ConvTranspose<strides = [2, 2]>(a, b) }",
        "ff",
    ),
    "average": (
        "(float[1, 2, 5, 5] a) => (float[1, 2, 3, 3] y) "
        "{ y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(a) }",
        "f",
    ),
    "indices": (
        "(float[1, 2, 4, 4] a) => (float[1, 2, 2, 2] y, int64[1, 2, 2, 2] i) "
        "{ y, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a) }",
        "f",
    ),
    "cubic": (
        "(float[1, 1, 4, 4] a) => (float[1, 1, 6, 6] y) "
        '{ s = Constant<value_floats = [1.0, 1.0, 1.5, 1.5]>() y = Resize<mode = "cubic">(a, , '
        "s) }",
        "f",
    ),
    "reflected": (
        "(float[3, 4] a) => (float[3, 8] y) "
        '{ p = Constant<value_ints = [0, 2, 0, 2]>() y = Pad<mode = "reflect">(a, p) }',
        "f",
    ),
    "layer": (
        "(float[3, 4] a, float[4] b) => (float[3, 4] y) { y = LayerNormalization(a, b) }",
        "ff",
    ),
    "quantised": (
        "(float[3, 4] a) => (float[3, 4] y) "
        "{ q, s, z = DynamicQuantizeLinear(a) y = DequantizeLinear(q, s, z) }",
        "f",
    ),
    "gru": (
        "(float[3, 2, 4] a, float[1, 9, 4] b, float[1, 9, 3] c) => "
        "(float[3, 1, 2, 3] y, float[1, 2, 3] h) { y, h = GRU<hidden_size = 3>(a, b, c) }",
        "fff",
    ),
    "sequence": (
        "(float[5, 2] a) => (float[5, 2] y) "
        "{ s = SplitToSequence<axis = 0>(a) y = ConcatFromSequence<axis = 0>(s) }",
        "f",
    ),
    "einsum": (
        "(float[2, 3, 4] a, float[2, 4, 5] b) => (float[2, 5, 3] y) "
        '{ y = Einsum<equation = "...ij,...jk->...ki">(a, b) }',
        "ff",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_agrees_with_the_reference(name: str) -> None:
    text, kinds = CASES[name]
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in model_of(f"g {text}").graph.input]
    inputs = [
        floats(*shape) if kind == "f" else RNG.choice([-7, -3, 2, 5], shape).astype(np.int32)
        for kind, shape in zip(kinds, shapes, strict=True)
    ]
    expect(f"g {text}", *inputs)


def test_shapes_are_computed_with_symbolic_dims() -> None:
    text = """
    g (float[n, m, 4] x) => (float[a, b] y) {
        shape = Shape(x)
        first = Constant<value_ints = [0]>()
        two = Constant<value_ints = [2]>()
        n = Gather(shape, first)
        half = Mul(n, two)
        rest = Constant<value_ints = [-1]>()
        wanted = Concat<axis = 0>(half, rest)
        y = Reshape(x, wanted)
    }
    """
    graph = import_onnx(model_of(text), dims={"m": 6})
    assert str(graph.outputs[0].type) == "[2*n]x12xf32"
    x = floats(3, 6, 4)
    np.testing.assert_array_equal(interpret(graph, [x])[0], x.reshape(6, 12))


def test_a_branch_and_a_loop() -> None:
    expect(
        """
        g (float[3] x, bool flag) => (float[3] y) {
            count = Constant<value_int = 4>()
            go = Constant<value = bool {1}>()
            z = Loop(count, go, x) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] t)
                { d = Identity(c) k = Cast<to = 1>(i) t = Add(s, k) }>
            y = If(flag) <then_branch = p () => (float[3] u) { u = Neg(z) },
                          else_branch = q () => (float[3] v) { v = Identity(z) }>
        }
        """,
        floats(3),
        np.array(True),
    )


def test_an_input_that_decides_the_form_can_be_a_constant() -> None:
    text = "g (float[3, 4] x, int64[k] axes) => (float[o] y) { y = ReduceSum<keepdims = 0>(x, axes) }"
    with pytest.raises(ContentNeededError, match=r"constants=\{'axes': …\} fixes it") as caught:
        import_onnx(model_of(text))
    assert caught.value.inputs == ("axes",)
    expect(text, floats(3, 4), np.array([1]), constants={"axes": [1]})


def test_every_unsupported_op_is_named_with_its_node() -> None:
    text = """
    g (float[4] x) => (float[4] y) {
        a = NonZero(x)
        b = Cast<to = 1>(a)
        c = ImageDecoder(b)
        y = Add(x, x)
    }
    """
    with pytest.raises(UnsupportedOpError) as caught:
        import_onnx(model_of(text))
    message = str(caught.value)
    assert "onnx.NonZero" in message
    assert "onnx.ImageDecoder at the node of 'c'" in message


def test_the_standards_function_serves_where_there_is_no_rule() -> None:
    expect(
        "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = MeanVarianceNormalization<axes = [0, 2]>(x) }",
        floats(2, 3, 4),
    )


def padded(array: Any, rows: int, axis: int) -> np.ndarray[Any, Any]:
    """Filled up with -1 along an axis."""
    return np.pad(
        array, [(0, rows - n if i == axis else 0) for i, n in enumerate(array.shape)], constant_values=-1
    )


@pytest.mark.parametrize(("layout", "threshold"), [(0, 0.2), (1, -1.0)])
def test_boxes_that_do_not_overlap_are_as_many_as_stated(layout: int, threshold: float) -> None:
    text = (
        "g (float[2, 9, 4] boxes, float[2, 3, 9] scores) => (int64[chosen, 3] y) "
        "{ n = Constant<value_ints = [4]>() i = Constant<value_floats = [0.3]>() "
        f"t = Constant<value_floats = [{threshold}]>() "
        f"y = NonMaxSuppression<center_point_box = {layout}>(boxes, scores, n, i, t) }}"
    )
    boxes = RNG.uniform(0, 1, (2, 9, 4)).astype(np.float32)
    boxes[..., 2:] += 0.0 if layout else boxes[..., :2]
    scores = RNG.uniform(-0.5, 1, (2, 3, 9)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model_of(text)).run(None, {"boxes": boxes, "scores": scores})
    (actual,) = interpret(import_onnx(model_of(text), dims={"chosen": 30}), [boxes, scores])
    np.testing.assert_array_equal(actual, padded(expected, 30, 0))
    (first,) = interpret(import_onnx(model_of(text), dims={"chosen": 5}), [boxes, scores])
    np.testing.assert_array_equal(first, expected[:5])
    returned(text, {"boxes": boxes, "scores": scores})
    read = model_of(text.replace("y =", "z =").replace("}", "y = Neg(z) }"))
    with pytest.raises(UnsupportedOpError, match="state the largest"):
        import_onnx(read)


def returned(text: str, inputs: dict[str, Any]) -> None:
    """Without a stated size, results have the reference's, by the sizes that follow them."""
    graph = import_onnx(model_of(text))
    assert graph.interface is not None
    built = result_builder(graph.interface.result)(interpret(graph, inputs), False)
    results = built if isinstance(built, tuple) else (built,)
    expected = ReferenceEvaluator(model_of(text)).run(None, inputs)
    assert len(results) == len(expected)
    for result, value in zip(results, expected, strict=True):
        assert result.dtype == value.dtype
        np.testing.assert_array_equal(result, value)


@pytest.mark.parametrize("options", ["", "<sorted = 0>", "<axis = 1>", "<axis = 0, sorted = 0>"])
@pytest.mark.parametrize("dtype", ["float", "int64"])
def test_distinct_elements_and_slices(options: str, dtype: str) -> None:
    results = f"{dtype}[] y, int64[] i, int64[] r, int64[] c"
    x = RNG.integers(-1, 2, (3, 4)).astype("float32" if dtype == "float" else "int64")
    x[2] = x[0]
    x = x if "axis" in options else x.reshape(-1)  # of a matrix ONNX's reference fails without an axis
    text = f"g ({dtype}{list(x.shape)} x) => ({results}) {{ y, i, r, c = Unique{options}(x) }}"
    returned(text, {"x": x})
    returned(text.replace("y, i, r, c =", "y, , , c =").replace(", int64[] i, int64[] r", ""), {"x": x * 0})


def test_indices_of_elements_that_are_not_zero_are_as_many_as_stated() -> None:
    text = "g (float[3, 5] x) => (int64[2, n] y) { y = NonZero(x) }"
    x = (RNG.uniform(0, 1, (3, 5)) > 0.5).astype(np.float32)
    (actual,) = interpret(import_onnx(model_of(text), dims={"n": 20}), [x])
    np.testing.assert_array_equal(actual, padded(np.stack(np.nonzero(x)), 20, 1))
    returned(text, {"x": x})
    returned(text, {"x": x * 0})


def test_a_model_returns_as_many_entries_as_there_are() -> None:
    results = "int64[2, n] y, float[3, 5] s"
    text = f"g (float[3, 5] x, float[3, 5] z) => ({results}) {{ y = NonZero(x) s = Add(x, z) }}"
    x, z = (RNG.uniform(0, 1, (2, 3, 5)) > 0.5).astype(np.float32)
    with mansard.compile(model_of(text), devices="cpu") as model:
        for given in (x, z, x * 0):
            y, total = model(given, z=z)
            np.testing.assert_array_equal(y, np.stack(np.nonzero(given)))
            np.testing.assert_array_equal(total, given + z)
