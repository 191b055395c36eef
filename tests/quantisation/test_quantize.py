"""`mansard.quantize` with calibration data: integers, reports, errors."""

import itertools

import numpy as np
import pytest
import torch
from quantisation.networks import Encoder, Images, Residuals, layers

import mansard
from mansard import CompileError, Dim, InputError
from mansard.dtypes import DType
from mansard.frontends import import_model
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Generic
from mansard.ir.verify import verify

IMAGES = [torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(n)) for n in range(4)]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Images().eval()


@pytest.fixture(scope="module")
def imported(network):
    """The graph of the network for images of one number."""
    return import_model(network, (IMAGES[0],))


@pytest.fixture(scope="module")
def quantised(network):
    return mansard.quantize(network, IMAGES, dynamic_shapes={"x": {0: Dim("batch", 1, 8)}})


@pytest.fixture(scope="module")
def compiled(quantised):
    return mansard.compile(quantised, devices="cpu")


def factors(graph):
    """The element types that each product multiplies."""
    products = [op for op in graph.ops if isinstance(op, Generic) and op.is_contraction]
    return [tuple(v.type.dtype for v in op.inputs) for op in products]


def distance(given, wanted):
    return float(np.linalg.norm(np.asarray(given) - np.asarray(wanted)) / np.linalg.norm(np.asarray(wanted)))


def test_every_product_multiplies_bytes_and_any_batch_runs(network, quantised, compiled):
    verify(quantised.graph)
    assert factors(quantised.graph) == [(DType.U8, DType.I8)] * 5
    for batch in (1, 5):
        x = torch.randn(batch, 3, 12, 12)
        assert distance(compiled(x), network(x).detach()) < 0.02


def test_values_between_layers_are_bytes(quantised):
    dispatches = mansard.lower(quantised, target="cpu").dispatches
    images = [v for d in dispatches for v in d.outputs if v.type.rank > 2]
    assert images and {v.type.dtype for v in images} == {DType.U8}


def sums(graph):
    """The element types of both operands of each sum of two computed values."""
    pairs = [[v.type.dtype for v in op.inputs if v not in graph.constants] for op in graph.ops]
    elementwise = [isinstance(op, Generic) and op.combiner is None for op in graph.ops]
    return [pair for pair, plain in zip(pairs, elementwise, strict=True) if plain and len(pair) == 2]


def test_sums_that_sums_read_are_bytes():
    torch.manual_seed(0)
    module, calls = Residuals().eval(), [torch.randn(1, 4, 6, 6) for _ in range(4)]
    module = import_model(module, (calls[0],))
    result = mansard.quantize(module, calls)
    assert sums(result.graph) == [[DType.U8, DType.U8]] * 4 and result.report.error < 0.05
    products = mansard.quantize(module, calls, "int8-products")
    assert sums(products.graph) == [[DType.F32, DType.F32]] * 4


def test_kernels_give_what_the_graph_says(quantised, compiled):
    x = IMAGES[0].numpy()
    np.testing.assert_allclose(compiled(x), interpret(quantised.graph, [x])[0], atol=1e-5)


def test_the_report_has_every_layer_and_what_was_measured(quantised, network):
    report = quantised.report
    assert [layer.name for layer in report.layers] == ["stem", "depthwise", "pointwise", "grouped", "head"]
    assert all(0 < layer.error < 0.05 and layer.sqnr > 25 for layer in report.layers)
    assert report.samples == 8 and report.agreement == 1.0 and report.operations == {"int8": 1.0}
    x = torch.cat(IMAGES)
    again = mansard.compile(quantised, devices="cpu")
    wanted = network(x).detach()
    assert report.error == pytest.approx(distance(again(x), wanted), rel=0.05)
    assert report.bytes < report.float_bytes / 2
    for part in ("depthwise", "top-1 agreement 100.0%", "8 samples"):
        assert part in str(report)


def test_a_saved_model_keeps_its_report(compiled, quantised, tmp_path):
    compiled.save(tmp_path / "net.mansard")
    with mansard.load(tmp_path / "net.mansard") as loaded:
        assert loaded.quantization == quantised.report
        np.testing.assert_array_equal(loaded(IMAGES[1]), compiled(IMAGES[1]))
    assert loaded.plan.info["quantisation"] == "int8, calibrated"


def test_products_alone_are_closer_to_the_float_model(imported, quantised):
    products = mansard.quantize(imported, IMAGES, "int8-products")
    assert products.report.error < quantised.report.error
    assert set(factors(products.graph)) == {(DType.U8, DType.I8)}


def test_sixteen_bits_and_signed_bytes(imported, quantised):
    wide = mansard.quantize(imported, IMAGES[:2], "int16")
    assert set(factors(wide.graph)) == {(DType.I16, DType.I8)} and wide.report.operations == {"int16": 1.0}
    assert wide.report.error < quantised.report.error
    signed = mansard.quantize(imported, IMAGES[:2], signed=True, keep=["head"])
    assert factors(signed.graph) == [(DType.I8, DType.I8)] * 4 + [(DType.F32, DType.F32)]


def test_mixed_precision_widens_what_changes_the_outputs():
    graph, data = layers(16, 32, 16, 8), {"x": np.random.default_rng(1).standard_normal((8, 16), np.float32)}
    mixed = mansard.quantize(graph, data, "mixed", budget=0.5, wide="float")
    kinds = {layer.name: layer.precision for layer in mixed.report.layers}
    assert kinds["layer1"] == "float" and mixed.report.operations["float"] <= 0.5
    assert all(layer.sensitivity > 0 for layer in mixed.report.layers)
    worst = max(mixed.report.layers, key=lambda layer: layer.sensitivity)
    assert (worst.name, worst.reason) == ("layer1", "sensitive") and "alone" in str(mixed)
    strict = mansard.quantize(graph, data)
    assert strict.report.operations == {"int8": 1.0} and strict.report.error > 2 * mixed.report.error
    none = mansard.quantize(graph, data, "mixed", budget=1.0, target_error=1.0)
    assert none.report.operations == {"int8": 1.0}


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(1)
    module, calls = Encoder().eval(), [torch.randn(2, 5, 16) for _ in range(3)]
    return module, import_model(module, (calls[0],)), calls


def test_norms_and_activations_stay_float(encoder):
    _, graph, calls = encoder
    result = mansard.quantize(graph, calls)
    kinds = [layer.precision for layer in result.report.layers]
    assert kinds == ["int8"] * 4 + ["float"] * 2 and result.report.error < 0.05
    assert "both factors are computed" in str(result)
    assert factors(result.graph).count((DType.F32, DType.F32)) == 2  # the attention
    means = [op for op in result.graph.ops if isinstance(op, Generic) and op.combiner == "add"]
    readers = result.graph.users()
    norms = [op.output for op in means if op.output.type.shape[-1] == 1]
    assert norms and all(r.output.type.dtype is DType.F32 for v in norms for r in readers[v])


def test_sums_before_norms_read_bytes(encoder):
    _, graph, calls = encoder
    result = mansard.quantize(graph, calls)
    assert sums(result.graph).count([DType.U8, DType.U8]) == 2  # the residuals


def test_a_token_of_outliers_leaves_steps_for_the_others():
    torch.manual_seed(2)
    module = Encoder().eval()
    with torch.no_grad():
        module.layer.linear2.weight[3] = 0.0
        module.layer.linear2.weight[3, 0], module.layer.linear2.bias[3] = 60.0, 0.0
        module.layer.linear1.bias[0] = -6.0
        module.layer.linear1.weight[0] = 0.0
        module.layer.linear1.weight[0, 0] = 5.0
    calls = [torch.randn(1, 16, 16) for _ in range(4)]
    for x in calls:
        x[:, 0, 0] = 12.0
    graph, others = import_model(module, (calls[0],)), {}
    for ranges in ("minmax", "mse"):
        model = mansard.compile(mansard.quantize(graph, calls, ranges=ranges), devices="cpu")
        others[ranges] = distance(model(calls[0])[:, 1:], module(calls[0]).detach()[:, 1:])
    assert others["mse"] < others["minmax"] / 2


def test_attention_around_zero(encoder):
    module, graph, calls = encoder
    result = mansard.quantize(graph, calls, attention=True, ranges="minmax")
    assert factors(result.graph).count((DType.I8, DType.I8)) == 2
    model = mansard.compile(result, devices="cpu")
    assert distance(model(calls[0]), module(calls[0]).detach()) < 0.05


def test_data_by_name_of_other_frameworks():
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((6, 12), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 12])], [weight],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    data = {"x": rng.standard_normal((20, 6), np.float32)}
    result = mansard.quantize(model, data, dims={"n": Dim("n", 1, 64)})
    assert result.report.samples == 20 and factors(result.graph) == [(DType.U8, DType.I8)]
    given = mansard.compile(result, devices="cpu")(data["x"])
    assert distance(given, data["x"] @ numpy_helper.to_array(weight)) < 0.02


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (None, {}, InputError, "calibration data is needed"),
        ([], {"example_inputs": (IMAGES[0],)}, InputError, "empty"),
        (IMAGES[0], {}, InputError, "iterable of calls"),
        ([IMAGES[0], IMAGES[0][0]], {}, InputError, "'x'"),
        ([IMAGES[0], IMAGES[0][:1]], {}, InputError, "x"),
        ([(IMAGES[0], IMAGES[0])], {"example_inputs": (IMAGES[0],)}, InputError, "x"),
        ({"z": IMAGES[0], "y": IMAGES[0]}, {"example_inputs": (IMAGES[0],)}, InputError, "takes x"),
        ({"x": IMAGES[0][:1]}, {"example_inputs": (IMAGES[0],)}, InputError, "1 samples"),
        ([IMAGES[0] * float("nan")], {}, CompileError, "not finite"),
        (IMAGES, {"scheme": "int7"}, CompileError, "'int8' or"),
        (IMAGES, {"ranges": "best"}, CompileError, "'minmax'"),
        (IMAGES, {"budget": 2}, CompileError, "0 to 1"),
        (IMAGES, {"group_size": 32}, CompileError, "without calibration data"),
        (IMAGES, {"keep": ["*"]}, CompileError, "stem: kept by its name"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(network, data, options, error, message):
    with pytest.raises(error, match=message):
        mansard.quantize(network, data, **options)


def test_a_model_without_products():
    with pytest.raises(CompileError, match="no product that can be quantised"):
        mansard.quantize(torch.nn.ReLU(), [torch.randn(2, 3)])


def test_data_may_be_a_generator():
    rows = (np.full((4, 6), n, np.float32) for n in range(9))
    given = itertools.islice(rows, 2)
    result = mansard.quantize(layers(6, 3), given, "int8-products", ranges="percentile")
    assert result.report.samples == 8
