"""JAX functions: live, exported and saved."""

import functools

import numpy as np
import pytest

import mansard
from mansard.dims import Dim
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends import import_model
from mansard.ir.interpreter.graph import interpret

jax = pytest.importorskip("jax", reason="install mansard[jax]")
jnp = jax.numpy
export = pytest.importorskip("jax.export")
f32 = np.float32


def layer(params, x):
    return {"y": jax.nn.relu(x @ params["w"] + params["b"]), "best": jnp.argmax(x, -1)}


@pytest.fixture(scope="module")
def params():
    rng = np.random.default_rng(0)
    return {"w": rng.standard_normal((3, 2), f32), "b": np.ones(2, f32)}


def test_a_plain_function_is_lowered_for_its_example_inputs(params):
    x = np.random.default_rng(1).standard_normal((4, 3), f32)
    with mansard.compile(functools.partial(layer, params), (x,), devices="cpu") as model:
        result = model(x)
    np.testing.assert_allclose(result["y"], layer(params, x)["y"], rtol=1e-5)
    np.testing.assert_array_equal(result["best"], np.argmax(x, -1))
    assert result["best"].dtype == np.int32


def test_a_compiled_function_is_called_as_the_function_is(params):
    def scaled(params, x, *, by=2.0, parts=None):
        return layer(params, x)["y"] * by, [x, parts["a"]]

    x, parts = np.ones((4, 3), f32), {"a": np.zeros(2, f32)}
    with mansard.compile(scaled, (params, x), kwargs={"parts": parts}, devices="cpu") as model:
        y, rest = model(params, x=x, parts=parts)
        assert isinstance(rest, list)
        np.testing.assert_allclose(y, scaled(params, x, parts=parts)[0], rtol=1e-5)
        with pytest.raises(mansard.InputError, match="default is compiled in"):
            model(params, x, by=3.0, parts=parts)


def test_inputs_and_outputs_are_called_after_their_paths(params):
    graph = import_model(jax.jit(layer), (params, np.zeros((4, 3), f32)))
    assert [v.name for v in graph.inputs] == ["params.b", "params.w", "x"]
    assert list(graph.output_names) == ["best", "y"]


def test_symbolic_sizes_are_dims_with_their_ranges(params):
    (batch,) = export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((batch, 3), f32)
    graph = import_model(functools.partial(layer, params), (spec,), dims={"b": Dim("b", 2, 8)})
    assert str(graph.inputs[0].type.shape[0]) == "b"
    x = np.ones((5, 3), f32)
    np.testing.assert_allclose(interpret(graph, [x])[1], layer(params, x)["y"], rtol=1e-5)
    with pytest.raises(ImportModelError, match="no symbolic dim 'n'"):
        import_model(functools.partial(layer, params), (spec,), dims={"n": 4})


def test_sizes_of_an_exported_function_may_be_multiples_of_a_symbol():
    def halved(x):
        pairs = x.reshape(x.shape[0] // 4, 4, 3)
        return pairs.sum(1) - jnp.ones(3)

    shape = export.symbolic_shape("4*h, 3", constraints=["h >= 1"])
    exported = export.export(jax.jit(halved))(jax.ShapeDtypeStruct(shape, jnp.float32))
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    with mansard.compile(exported, dims={"h": Dim("h", 1, 8)}, devices="cpu") as model:
        assert np.allclose(model(x), halved(x))
        with pytest.raises(mansard.ShapeContractError):
            model(x[:7])


def test_an_exported_function_and_its_file_compile_alike(params, tmp_path):
    (batch,) = export.symbolic_shape("b", constraints=["b >= 2"])
    spec = jax.ShapeDtypeStruct((batch, 3), f32)
    exported = export.export(jax.jit(layer))(params, spec)
    path = tmp_path / "layer.jax"
    path.write_bytes(exported.serialize())
    graph = import_model(exported)
    assert str(graph) == str(import_model(path)) == str(import_model(str(path)))
    assert [v.name for v in graph.inputs] == ["params.b", "params.w", "x"]
    x = np.ones((3, 3), f32)
    np.testing.assert_allclose(
        interpret(graph, [params["b"], params["w"], x])[1], layer(params, x)["y"], rtol=1e-5
    )
    with pytest.raises(mansard.ShapeContractError, match="2 <= b"):
        interpret(graph, [params["b"], params["w"], x[:1]])


def test_an_input_that_is_not_used_stays_an_input():
    graph = import_model(lambda x, y: x + 1, (np.zeros(3, f32), np.zeros(2, f32)))
    assert [v.name for v in graph.inputs] == ["x", "arg1"]
    graph = import_model(lambda x, y: y + 1, (np.zeros(3, f32), np.ones(3, f32)))
    assert [v.name for v in graph.inputs] == ["arg0", "y"]
    np.testing.assert_array_equal(interpret(graph, [np.zeros(3, f32), np.ones(3, f32)])[0], [2, 2, 2])


def test_a_scan_writes_its_rows_once():
    def running(x):
        return jax.lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(2), x)

    x = np.arange(10, dtype=f32).reshape(5, 2)
    graph = import_model(running, (x,))
    for ours, theirs in zip(interpret(graph, [x]), running(x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_failing_import_names_the_ops_and_their_source_lines():
    def solved(x):
        return jnp.linalg.inv(x), jnp.fft.fft(x)

    with pytest.raises(UnsupportedOpError) as raised:
        import_model(solved, (np.eye(3, dtype=f32),))
    message = str(raised.value)
    assert "lapack" in message
    assert "fft" in message
    assert "test_import.py:" in message


def test_a_function_that_jax_cannot_trace_is_an_error_that_says_so():
    def branching(x):
        return x if x[0] > 0 else -x

    with pytest.raises(ImportModelError, match="JAX cannot trace the function: TracerBool"):
        import_model(branching, (np.zeros(2, f32),))


def test_an_exact_gelu_that_export_has_expanded_is_the_same_dispatch():
    rng = np.random.default_rng(1)
    first, second = (rng.standard_normal(s).astype(f32) for s in ((8, 16), (16, 4)))

    def block(x):
        return jax.nn.gelu(x @ first, approximate=False) @ second

    x = (4 * rng.standard_normal((3, 8))).astype(f32)
    shape = export.symbolic_shape("b, 8", constraints=["b <= 9"])
    exported = export.export(jax.jit(block))(jax.ShapeDtypeStruct(shape, f32))
    dims = {"b": Dim("b", 1, 9)}
    names = [
        [d.name for d in graph.dispatches]
        for graph in (
            mansard.lower(block, (x,), stop_after="fuse"),
            mansard.lower(exported, dims=dims, stop_after="fuse"),
        )
    ]
    assert names == [["contraction", "contraction_1"]] * 2
    (result,) = interpret(import_model(exported, dims=dims), [x])
    np.testing.assert_allclose(result, block(x), rtol=1e-5, atol=1e-5)
