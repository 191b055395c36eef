"""ONNX models compile and answer as ONNX's reference evaluator does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import mansard
from mansard.dims import Dim
from mansard.errors import ImportModelError, ShapeContractError, UnsupportedOpError
from mansard.frontends import import_model

RNG = np.random.default_rng(11)


def network(opset: int = 17) -> onnx.ModelProto:
    """A convolution, a product, a normalisation: weights, a symbolic batch, shapes as initialisers."""
    model = parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        network (float[batch, 3, 12, 12] image) => (float[batch, 10] scores, int64[batch] best)
        <float[8, 3, 3, 3] kernel, float[8] bias, int64[2] flat = {{-1, 288}}, float[288, 10] weight>
        {{
            c = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (image, kernel, bias)
            r = Relu(c)
            f = Reshape(r, flat)
            m = MatMul(f, weight)
            scores = Softmax <axis = -1> (m)
            best = ArgMax <axis = 1, keepdims = 0> (m)
        }}
        """
    )
    shapes = {"kernel": (8, 3, 3, 3), "bias": (8,), "weight": (288, 10)}
    kept = [t for t in model.graph.initializer if t.name not in shapes]
    del model.graph.initializer[:]
    weights = [(RNG.standard_normal(s).astype(np.float32) / 4, n) for n, s in shapes.items()]
    model.graph.initializer.extend([*kept, *(numpy_helper.from_array(array, n) for array, n in weights)])
    return model


def expect(model: onnx.ModelProto, compiled: mansard.Model, inputs: Mapping[str, Any]) -> None:
    """Compare all outputs."""
    expected = ReferenceEvaluator(model).run(None, dict(inputs))
    actual = compiled(**inputs)
    actual = actual if isinstance(actual, tuple) else (actual,)
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_a_model_in_memory(opset: int) -> None:
    model = network(opset)
    with mansard.compile(model, devices="cpu", cache=False) as compiled:
        assert [spec.name for spec in compiled.outputs] == ["scores", "best"]
        for batch in (1, 5):
            expect(model, compiled, {"image": RNG.standard_normal((batch, 3, 12, 12)).astype(np.float32)})
    assert [t.name for t in model.graph.initializer][-1] == "weight", "the caller's model is left as it was"


def test_external_data_is_read_from_its_file(tmp_path: Path) -> None:
    model = network()
    stored = onnx.ModelProto()
    stored.CopyFrom(model)
    path = tmp_path / "network.onnx"
    onnx.save(stored, path, save_as_external_data=True, location="network.data", size_threshold=0)
    with mansard.compile(path, devices="cpu", cache=False) as compiled:
        expect(model, compiled, {"image": RNG.standard_normal((2, 3, 12, 12)).astype(np.float32)})


def test_dims_are_chosen_by_name() -> None:
    model = network()
    with mansard.compile(model, devices="cpu", cache=False, dims={"batch": 4}) as compiled:
        assert compiled.dims == ()
        expect(model, compiled, {"image": RNG.standard_normal((4, 3, 12, 12)).astype(np.float32)})
    with mansard.compile(model, devices="cpu", cache=False, dims={"batch": Dim("batch", 1, 8)}) as compiled:
        assert [(dim.name, dim.max) for dim in compiled.dims] == [("batch", 8)]
        with pytest.raises(ShapeContractError, match="batch"):
            compiled(np.zeros((9, 3, 12, 12), np.float32))
    with pytest.raises(ImportModelError, match=r"no symbolic dim 'rows'; it has: batch"):
        mansard.compile(model, devices="cpu", dims={"rows": 4})


def test_an_op_without_a_lowering_is_named() -> None:
    node = helper.make_node("NoSuchOp", ["x"], ["y"], name="the_node", domain="my.domain")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)
    with pytest.raises(UnsupportedOpError, match="NoSuchOp"):
        mansard.compile(model, devices="cpu")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "no graph"), (b"\xff" * 64, "not an ONNX model"), (b"PK\x03\x04" * 9, "not an ONNX model")],
)
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ImportModelError, match=message):
        mansard.compile(path, devices="cpu")


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match=r"cannot read .*none\.onnx: No such file"):
        mansard.compile(tmp_path / "none.onnx", devices="cpu")


def test_old_and_new_operator_sets_are_refused() -> None:
    model = network()
    for version in (6, 99):
        model.opset_import[0].version = version
        with pytest.raises(ImportModelError, match=rf"operator set {version}; 7 to \d+ are read"):
            mansard.compile(model, devices="cpu")


@pytest.mark.parametrize("location", ["../weights.data", "/etc/hostname", "missing.data"])
def test_external_data_outside_the_models_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "weights.data").write_bytes(bytes(1 << 16))
    folder = tmp_path / "model"
    folder.mkdir()
    model = network()
    tensor = next(t for t in model.graph.initializer if t.name == "weight")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ImportModelError, match="no file beside the model"):
        mansard.compile(folder / "model.onnx", devices="cpu")


def test_external_data_that_is_cut_off(tmp_path: Path) -> None:
    model = network()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").write_bytes(bytes(100))
    with pytest.raises(ImportModelError, match="which is shorter"):
        mansard.compile(tmp_path / "m.onnx", devices="cpu")


def test_example_inputs_are_refused() -> None:
    with pytest.raises(ImportModelError, match="states its shapes"):
        mansard.compile(network(), [np.zeros((1, 3, 12, 12), np.float32)], devices="cpu")


def test_element_types_that_are_unsupported() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.STRING, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(ImportModelError, match=r"'x' has element type string; supported: float"):
        mansard.compile(model, devices="cpu")


def test_a_symbolic_dim_may_be_an_expression_of_one_or_of_other_dims():
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["2*h", "past + 1", "a-b"]), ("y", ["past", 4]))
    )
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["z"])], "g", [x, y], [z])
    model = onnx.load_from_string(helper.make_model(graph).SerializeToString())
    imported = import_model(model, dims={"h": Dim("h", 1, 4), "past": 3})
    assert [str(d) for d in imported.inputs[0].type.shape] == ["2*h", "4", "a_b"]
