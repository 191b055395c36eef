"""StableHLO text and bytecode: what the importer reads, and what it says about what it cannot."""

import io
import math
import re

import numpy as np
import pytest

import mansard
from mansard.dims import Dim
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends import import_model
from mansard.frontends.mlir_worker.passes import new_context, parse
from mansard.frontends.stablehlo.definitions import definition
from mansard.frontends.stablehlo.table import supported
from mansard.ir.interpreter.graph import interpret

SOFTMAX = """
func.func @main(%x: tensor<?x4xf32> loc("x")) -> tensor<?x4xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %c4 = stablehlo.constant dense<4> : tensor<1xi32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1]
    : (tensor<?x4xf32>, tensor<f32>) -> tensor<?xf32>
  %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
  %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %shape = stablehlo.concatenate %n1, %c4, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %wide = stablehlo.dynamic_broadcast_in_dim %m, %shape, dims = [0]
    : (tensor<?xf32>, tensor<2xi32>) -> tensor<?x4xf32>
  %d = stablehlo.subtract %x, %wide : tensor<?x4xf32>
  %e = stablehlo.exponential %d : tensor<?x4xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<?x4xf32>, tensor<f32>) -> tensor<?xf32>
  %sums = stablehlo.dynamic_broadcast_in_dim %s, %shape, dims = [0]
    : (tensor<?xf32>, tensor<2xi32>) -> tensor<?x4xf32>
  %r = stablehlo.divide %e, %sums : tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}
"""


def evaluated(text, *arrays, **options):
    """The results of a module's Graph by the reference interpreter."""
    return interpret(import_model(text, **options), arrays)


def test_text_bytecode_and_files_of_them_give_one_graph(tmp_path):
    bytecode = io.BytesIO()
    parse(SOFTMAX.encode(), new_context()).operation.write_bytecode(bytecode)
    (tmp_path / "a.mlir").write_text(SOFTMAX)
    (tmp_path / "a.mlirbc").write_bytes(bytecode.getvalue())
    sources = [SOFTMAX, bytecode.getvalue(), tmp_path / "a.mlir", str(tmp_path / "a.mlirbc")]
    texts = {str(import_model(source)) for source in sources}
    assert len(texts) == 1
    x = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    (result,) = evaluated(SOFTMAX, x)
    np.testing.assert_allclose(result, np.exp(x) / np.exp(x).sum(), rtol=1e-6)


def test_open_sizes_become_dims_called_after_their_input_or_as_given():
    graph = import_model(SOFTMAX)
    assert graph.inputs[0].type.shape[0].symbols() == {Dim("x_0", 1, 2**31 - 1)}
    fixed = import_model(SOFTMAX, dims={"x": [Dim("batch", 1, 8), None]})
    assert str(fixed.inputs[0].type.shape[0]) == "batch"
    with pytest.raises(ImportModelError, match="axis 1 of input 'x' is 4 in the module, not 5"):
        import_model(SOFTMAX, dims={"x": [2, 5]})


def test_open_sizes_that_must_be_equal_are_one_dim():
    text = """func.func @main(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xf32> {
      %r = stablehlo.add %a, %b : tensor<?xf32>
      return %r : tensor<?xf32>
    }"""
    graph = import_model(text)
    assert graph.inputs[0].type.shape == graph.inputs[1].type.shape


def test_every_unsupported_op_is_named_with_its_place():
    text = """func.func @main(%x: tensor<4xf32>) -> tensor<3xcomplex<f32>> {
      %r = stablehlo.custom_call @lapack(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("net.py":7:3)
      %y = stablehlo.rng %z, %z, %s, distribution = UNIFORM
        : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32> loc("net.py":9:3)
      %w = stablehlo.fft %y, type = RFFT, length = [4]
        : (tensor<4xf32>) -> tensor<3xcomplex<f32>> loc("net.py":12:1)
      return %w : tensor<3xcomplex<f32>>
    }"""
    constants = """%z = stablehlo.constant dense<0.0> : tensor<f32>
      %s = stablehlo.constant dense<4> : tensor<1xi64>
      %y ="""
    with pytest.raises(UnsupportedOpError) as raised:
        import_model(text.replace("%y =", constants, 1))
    message = str(raised.value)
    for part in ("@lapack", "net.py:7", "stablehlo.rng", "net.py:9", "stablehlo.fft", "net.py:12", "complex"):
        assert part in message


def test_a_module_of_linalg_is_none_of_stablehlo():
    text = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }\n"""
    assert len(import_model(text).outputs) == 1
    with pytest.raises(ImportModelError, match="is not a StableHLO module"):
        import_model("func.func @main() {\n %0 = stablehlo.nonsense\n}")


def test_a_loop_of_a_number_of_steps_is_unrolled_and_its_rows_are_joined_once():
    text = """func.func @main(%x: tensor<4x2xf32>) -> tensor<4x2xf32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %four = stablehlo.constant dense<4> : tensor<i32>
      %none = stablehlo.constant dense<0.0> : tensor<4x2xf32>
      %r:2 = stablehlo.while(%i = %zero, %acc = %none) : tensor<i32>, tensor<4x2xf32>
      cond {
        %p = stablehlo.compare LT, %i, %four, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      } do {
        %row = stablehlo.dynamic_slice %x, %i, %zero, sizes = [1, 2]
          : (tensor<4x2xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
        %twice = stablehlo.add %row, %row : tensor<1x2xf32>
        %next = stablehlo.dynamic_update_slice %acc, %twice, %i, %zero
          : (tensor<4x2xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x2xf32>
        %j = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %j, %next : tensor<i32>, tensor<4x2xf32>
      }
      return %r#1 : tensor<4x2xf32>
    }"""
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    (result,) = evaluated(text, x)
    np.testing.assert_array_equal(result, 2 * x)
    assert len(re.findall(" = concat ", str(import_model(text)))) == 1


def test_a_loop_whose_length_is_computed_is_refused():
    text = """func.func @main(%n: tensor<i32>) -> tensor<i32> {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %r = stablehlo.while(%i = %one) : tensor<i32>
      cond {
        %p = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      } do {
        %j = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %j : tensor<i32>
      }
      return %r : tensor<i32>
    }"""
    with pytest.raises(UnsupportedOpError, match="number of iterations is computed at run time"):
        import_model(text)


def test_a_portable_model_runs(tmp_path):
    path = tmp_path / "softmax.mlir"
    path.write_text(SOFTMAX)
    x = np.array([[0.0, 1.0, 2.0, 3.0]] * 3, np.float32)
    with mansard.compile(path, devices="cpu") as model:
        np.testing.assert_allclose(model(x), np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-5)


def test_the_table_has_the_ops_of_the_specification():
    assert {"stablehlo.gather", "stablehlo.while", "chlo.top_k"} <= set(supported())


def test_the_expanded_error_function_is_recognised_by_all_of_its_numbers():
    x = np.array(
        [-30.0, -5.0, -1.5, -0.5, -0.0, 1e-3, 0.99, 1.0, 1.99, 2.5, 9.0, 12.0, np.nan, np.inf], np.float32
    )
    text = re.sub(r"tensor<(f32|i1)>", r"tensor<14x\1>", str(definition("chlo.erfc", ["f32"], ["f32"])))
    graph = import_model(text)
    assert len(graph.ops) == 1
    expected = np.array([math.erfc(v) for v in x])
    np.testing.assert_allclose(interpret(graph, [x])[0], expected, rtol=3e-6, atol=1e-37)
    numbers = re.findall(r"dense<(-?\d[\d.E+-]*)>", text)
    assert len(numbers) > 20
    for number in numbers[::6]:
        changed = import_model(text.replace(f"dense<{number}>", "dense<0.25>"))
        assert len(changed.ops) > 40
