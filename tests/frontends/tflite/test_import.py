"""Whole ``.tflite`` models: what LiteRT answers, dims, names, variables, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import mansard
from benchmarks.tflite_ops.cases import built
from benchmarks.tflite_ops.litert import litert, run_interpreter
from benchmarks.tflite_ops.writer import Writer
from mansard.dims import Dim
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.tflite.importer import import_tflite
from mansard.ir.interpreter.graph import interpret

RNG = np.random.default_rng(11)
Array = np.ndarray[Any, Any]


def floats(*shape: int) -> Array:
    """Normally distributed numbers."""
    return RNG.standard_normal(shape).astype(np.float32)


def interpreted(model: bytes, *inputs: Array, **options: Any) -> list[Array]:
    """The model's results by the interpreter of the Graph."""
    graph = import_tflite(model, **options)
    return interpret(graph, {v.name: x for v, x in zip(graph.inputs, inputs, strict=True)})


def separable(*, batch: int = 1) -> bytes:
    """A MobileNet's first layers and head, in real numbers."""
    w = Writer()
    open_batch = (batch,) if batch > 0 else (1,)
    signature = None if batch > 0 else (-1, 8, 8, 3)
    x = w.input((*open_batch, 8, 8, 3), signature=signature)
    y, z, p, r, s = (w.tensor((*open_batch, *d)) for d in ((4, 4, 4), (4, 4, 4), (1, 1, 4), (4,), (4,)))
    w.op(
        "CONV_2D", [x, w.constant(floats(4, 3, 3, 3)), w.constant(floats(4))], [y],
        padding=0, stride_w=2, stride_h=2, fused_activation_function=3,
    )  # fmt: skip
    w.op(
        "DEPTHWISE_CONV_2D", [y, w.constant(floats(1, 3, 3, 4)), w.constant(floats(4))], [z],
        padding=0, stride_w=1, stride_h=1, depth_multiplier=1, fused_activation_function=1,
    )  # fmt: skip
    w.op("AVERAGE_POOL_2D", [z], [p], padding=1, stride_w=1, stride_h=1, filter_width=4, filter_height=4)
    w.op("RESHAPE", [p, w.constant(np.array([-1, 4], np.int32))], [r])
    w.op("SOFTMAX", [r], [s], beta=1.0)
    w.outputs(s)
    w.signature("serve", {"image": x}, {"scores": s})
    return w.bytes()


def quantised(zero: int = 3, *, inner: bool = True) -> bytes:
    """A convolution with scales for each filter, one of each channel, an addition and a head, in int8."""
    w = Writer()
    x = w.input((1, 8, 8, 3), "int8", scale=0.05, zero=zero)

    def weights(shape: tuple[int, ...], axis: int) -> int:
        codes = RNG.integers(-127, 128, shape).astype(np.int8)
        return w.constant(codes, scale=RNG.uniform(0.01, 0.03, shape[axis]).tolist(), axis=axis)

    def bias(count: int) -> int:
        return w.constant(RNG.integers(-500, 500, count).astype(np.int32))

    y = w.tensor((1, 4, 4, 4), "int8", scale=0.09, zero=-5)
    z = w.tensor((1, 4, 4, 4), "int8", scale=0.2, zero=7)
    s = w.tensor((1, 4, 4, 4), "int8", scale=0.25, zero=1)
    out = w.tensor((1, 5), "int8", scale=0.5, zero=-2)
    strided = {"padding": 0, "stride_w": 2, "stride_h": 2, "fused_activation_function": 1}
    w.op("CONV_2D", [x, weights((4, 3, 3, 3), 0), bias(4)], [y], **strided)
    near = {"padding": 0, "stride_w": 1, "stride_h": 1, "depth_multiplier": 1}
    w.op("DEPTHWISE_CONV_2D", [y, weights((1, 3, 3, 4), 3), bias(4)], [z], **near)
    w.op("ADD", [y, z], [s])
    dense = w.constant(RNG.integers(-127, 128, (5, 64)).astype(np.int8), scale=0.01)
    w.op("FULLY_CONNECTED", [s, dense, bias(5)], [out])
    w.outputs(*((y, z, s, out) if inner else (out,)))
    return w.bytes()


def test_a_real_model_answers_as_litert_on_every_device(tmp_path: Path) -> None:
    path = tmp_path / "small.tflite"
    path.write_bytes(separable())
    x = floats(1, 8, 8, 3)
    (expected,) = litert(path.read_bytes(), [x])
    model = mansard.compile(str(path))
    np.testing.assert_allclose(np.asarray(model(x)), expected, rtol=1e-4, atol=1e-5)


def test_a_quantised_model_is_within_one_step_and_multiplies_bytes() -> None:
    model = quantised()
    x = RNG.integers(-128, 128, (1, 8, 8, 3)).astype(np.int8)
    for actual, expected in zip(interpreted(model, x), litert(model, [x]), strict=True):
        assert actual.dtype == np.int8
        assert np.abs(actual.astype(np.int32) - expected.astype(np.int32)).max() <= 1
    text = str(import_tflite(model))
    assert text.count("xi32 = generic") == 3  # the products, summed in i32
    assert "f32 = generic" not in text  # nothing real is stored


def test_activations_that_only_layers_see_are_unsigned_bytes() -> None:
    model = quantised(inner=False)
    graph = import_tflite(model)
    stored = {str(v.type.dtype) for op in graph.ops for v in op.outputs if v.type.dtype.bits == 8}
    assert stored == {"u8", "i8"}  # i8: the result
    assert [str(v.type.dtype) for v in (*graph.inputs, *graph.outputs)] == ["i8", "i8"]
    x = RNG.integers(-128, 128, (1, 8, 8, 3)).astype(np.int8)
    (actual,), (expected,) = interpreted(model, x), litert(model, [x])
    assert np.abs(actual.astype(np.int32) - expected.astype(np.int32)).max() <= 2  # of three layers


def by_phases(op: str, kind: str, pads: list[list[int]], crops: list[list[int]], *, same: bool) -> bytes:
    """A convolution of 7 x 9 pixels with dilations of 3 and 2, as converters write it for an open batch."""
    real, blocks, channels = kind == "float32", [3, 2], 4
    padded = [size + sum(side) for size, side in zip((7, 9), pads, strict=True)]
    each = [d // b for d, b in zip(padded, blocks, strict=True)]
    some = [d if same else d - 2 for d in each]
    sizes = [d * b - sum(crop) for d, b, crop in zip(some, blocks, crops, strict=True)]
    w = Writer()

    def tensor(shape: tuple[int, ...], scale: float) -> dict[str, Any]:
        return {"shape": shape} if real else {"shape": shape, "dtype": kind, "scale": scale, "zero": 3}

    def ints(value: Any) -> int:
        return w.constant(np.array(value, np.int32))

    x = w.input(**tensor((1, 7, 9, channels), 0.05))
    parts = w.tensor(**tensor((6, *each, channels), 0.05))
    results = w.tensor(**tensor((6, *some, channels), 0.2))
    y = w.tensor(**tensor((1, *sizes, channels), 0.2))
    shape = (1, 3, 3, channels) if op == "DEPTHWISE_CONV_2D" else (channels, 3, 3, channels)
    if real:
        kernel, bias = w.constant(floats(*shape)), w.constant(floats(channels))
    else:
        axis = 3 if op == "DEPTHWISE_CONV_2D" else 0
        codes = RNG.integers(-127, 128, shape).astype(np.int8)
        kernel = w.constant(codes, scale=[0.01, 0.02, 0.015, 0.01], axis=axis)
        bias = w.constant(RNG.integers(-500, 500, channels).astype(np.int32))
    options = {"depth_multiplier": 1} if op == "DEPTHWISE_CONV_2D" else {}
    w.op("SPACE_TO_BATCH_ND", [x, ints(blocks), ints(pads)], [parts])
    w.op(
        op, [parts, kernel, bias], [results], padding=0 if same else 1, stride_w=1, stride_h=1,
        fused_activation_function=1, **options,
    )  # fmt: skip
    w.op("BATCH_TO_SPACE_ND", [results, ints(blocks), ints(crops)], [y])
    w.outputs(y)
    return w.bytes()


@pytest.mark.parametrize("op", ["CONV_2D", "DEPTHWISE_CONV_2D"])
@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize(
    ("pads", "crops", "same"),
    [([[3, 5], [2, 3]], [[0, 2], [0, 1]], False), ([[0, 2], [0, 1]], [[0, 2], [0, 1]], True)],
)
def test_a_convolution_by_phases_is_one_with_dilation(
    op: str, kind: str, pads: list[list[int]], crops: list[list[int]], *, same: bool
) -> None:
    model = by_phases(op, kind, pads, crops, same=same)
    x = floats(1, 7, 9, 4) if kind == "float32" else RNG.integers(-128, 128, (1, 7, 9, 4)).astype(np.int8)
    (expected,), (result,) = litert(model, [x]), interpreted(model, x)
    np.testing.assert_allclose(
        result.astype(float), expected.astype(float), atol=1e-5 if kind == "float32" else 1
    )
    graph = mansard.lower(model, stop_after="fuse")
    assert [d.name for d in graph.dispatches if d.name != "map"] == ["contraction"]
    assert all(v.type.shape[0] == 1 for d in graph.dispatches for v in d.outputs)  # a margin at most apart


def test_crops_beyond_the_margin_are_cut_off() -> None:
    model = by_phases("DEPTHWISE_CONV_2D", "float32", [[0, 2], [0, 1]], [[1, 0], [1, 0]], same=False)
    x = floats(1, 7, 9, 4)
    np.testing.assert_allclose(interpreted(model, x)[0], litert(model, [x])[0], atol=1e-5)


def test_an_open_batch_is_a_dim_of_the_input_and_names_are_those_of_the_signature() -> None:
    model = separable(batch=-1)
    graph = import_tflite(model)
    assert [v.name for v in graph.inputs] == ["image"]
    assert graph.output_names == ("scores",)
    assert str(graph.inputs[0].type) == "[image_0]x8x8x3xf32"
    x = floats(3, 8, 8, 3)
    (actual,) = interpreted(model, x)
    np.testing.assert_allclose(actual, litert(model, [x])[0], rtol=1e-4, atol=1e-5)
    fixed = import_tflite(model, dims={"image_0": 2})
    assert str(fixed.inputs[0].type) == "2x8x8x3xf32"
    named = import_tflite(model, dims={"image_0": Dim("batch", 1, 8)}, signature="serve")
    assert named.dims()["batch"].max == 8
    with pytest.raises(ImportModelError, match="no symbolic dim 'batch'; it has: image_0"):
        import_tflite(model, dims={"batch": 2})
    with pytest.raises(ImportModelError, match="no signature 'train'; it has: serve"):
        import_tflite(model, signature="train")


def test_all_unsupported_operators_are_named_with_their_places() -> None:
    w = Writer()
    x = w.input((4,))
    a, b, c = (w.tensor((4,), name=n) for n in "abc")
    w.op("WHERE", [x], [a])
    w.op("Mystery", [x], [b], custom=b"\x01")
    w.op("SKIP_GRAM", [a], [c])
    w.outputs(c, b)
    with pytest.raises(UnsupportedOpError) as error:
        import_tflite(w.bytes())
    text = str(error.value)
    for part in (
        "'tflite.WHERE' at operator 0 of subgraph 0 (to 'a')",
        "tflite.custom.Mystery at operator 1 of subgraph 0 (to 'b')",
        "tflite.SKIP_GRAM at operator 2 of subgraph 0 (to 'c')",
    ):
        assert part in text


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tflite"
    path.write_bytes(b"no model")
    with pytest.raises(ImportModelError, match=r"is not a \.tflite file: its identifier"):
        mansard.compile(str(path))
    with pytest.raises(ImportModelError, match="cannot read"):
        import_tflite(tmp_path / "absent.tflite")
    with pytest.raises(ImportModelError, match="it takes no example inputs"):
        mansard.compile(separable(), floats(1, 8, 8, 3))


def _mutants(model: bytes, count: int) -> list[bytes]:
    rng = np.random.default_rng(5)
    mutants = []
    for _ in range(count):
        data = np.frombuffer(model, np.uint8).copy()
        kind = rng.integers(3)
        if kind == 0:
            data = data[: rng.integers(8, len(data))]
        else:
            for place in rng.integers(8, len(data) - 4, rng.integers(1, 4)):
                if kind == 1:
                    data[place] = rng.integers(256)
                else:
                    data[place : place + 4] = rng.choice([0, 127, 255], 4)
        mutants.append(data.tobytes())
    return mutants


def test_damaged_files_are_refused_or_read_but_never_crash() -> None:
    refused = 0
    for model in (quantised(), separable(batch=-1)):
        for mutant in _mutants(model, 150):
            try:
                import_tflite(mutant)
            except (ImportModelError, UnsupportedOpError):
                refused += 1
    assert refused > 30


def counter() -> bytes:
    """A resource variable that starts at 10 and grows by the input."""
    w = Writer()
    handle, held, x = w.tensor((), "int32"), w.tensor((2,)), w.input((2,))
    w.graph.tensors[handle].type = 13  # a resource
    y = w.tensor((2,))
    w.op("CALL_ONCE", [], [], init_subgraph_index=1)
    w.op("VAR_HANDLE", [], [handle], shared_name="total")
    w.op("READ_VARIABLE", [handle], [held])
    w.op("ADD", [held, x], [y])
    w.op("ASSIGN_VARIABLE", [handle, y], [])
    w.outputs(y)
    w.begin()
    first = w.tensor((), "int32")
    w.graph.tensors[first].type = 13
    w.op("VAR_HANDLE", [], [first], shared_name="total")
    w.op("ASSIGN_VARIABLE", [first, w.constant(np.full(2, 10, np.float32))], [])
    return w.bytes()


def test_variables_persist_from_call_to_call() -> None:
    x = np.array([1, 2], np.float32)
    with mansard.compile(counter()) as model:
        results = [np.asarray(model(x)).tolist() for _ in range(3)]
    assert results == [[11, 12], [12, 14], [13, 16]]


def test_the_state_of_a_recurrent_network_persists_as_in_litert() -> None:
    case, data, inputs = built("unidirectional_sequence_lstm-plain")
    interpreter = Interpreter(model_content=data)
    with mansard.compile(data) as model:
        for _ in range(3):
            (expected,) = run_interpreter(interpreter, inputs)
            np.testing.assert_allclose(np.asarray(model(*inputs)), expected, rtol=case.rtol, atol=case.atol)


def test_weights_may_lie_behind_the_flatbuffer_as_in_files_over_2_gb(tmp_path: Path) -> None:
    weights = floats(3)

    def packed(offset: int) -> bytes:
        w = Writer()
        x, y = w.input((3,)), w.tensor((3,))
        constant = w.constant(weights)
        buffer = w.buffers[w.graph.tensors[constant].buffer]
        buffer.data, buffer.offset, buffer.size = None, offset, weights.nbytes
        w.op("ADD", [x, constant], [y])
        w.outputs(y)
        return w.bytes()

    start = -(-len(packed(1 << 40)) // 16) * 16
    path = tmp_path / "large.tflite"
    path.write_bytes(packed(start).ljust(start, b"\0") + weights.tobytes())
    x = floats(3)
    graph = import_tflite(path)
    (actual,) = interpret(graph, {"x0": x})
    np.testing.assert_allclose(actual, x + weights)
    with pytest.raises(ImportModelError, match="is damaged"):
        import_tflite(packed(1 << 40))


def test_several_inputs_share_open_sizes_of_an_axis_unless_told_otherwise() -> None:
    w = Writer()
    a, b = (w.input((1, 4), signature=(-1, 4)) for _ in range(2))
    c = w.input((1, 5), signature=(-1, 5))
    y, z = w.tensor((1, 4), signature=(-1, 4)), w.tensor((1, 5), signature=(-1, 5))
    w.op("ADD", [a, b], [y])
    w.op("ABS", [c], [z])
    w.outputs(y, z)
    graph = import_tflite(w.bytes())
    assert [str(v.type) for v in graph.inputs] == ["[x0_0]x4xf32", "[x0_0]x4xf32", "[x0_0]x5xf32"]
    graph = import_tflite(w.bytes(), dims={"x1_0": 3, "x2_0": Dim("rest", 1, 9)})
    assert [str(v.type) for v in graph.inputs] == ["3x4xf32", "3x4xf32", "[rest]x5xf32"]


def test_open_sizes_that_operators_find_equal_are_one() -> None:
    w = Writer()
    a, b, c = (w.input(shape, signature=(-1, *shape[1:])) for shape in ((1, 4), (1, 1, 4), (1, 1, 1, 4)))
    y, z = w.tensor((1, 4), signature=(-1, 4)), w.tensor((1, 1, 1, 4), signature=(-1, 1, 1, 4))
    flat = w.tensor((1, 4), signature=(-1, 4))
    w.op("RESHAPE", [b, w.constant(np.array([-1, 4], np.int32))], [flat])
    w.op("ADD", [a, flat], [y])
    w.op("CONCATENATION", [c, c], [z], axis=1)
    w.outputs(y, z)
    graph = import_tflite(w.bytes())
    assert [str(v.type.shape[0]) for v in graph.inputs] == ["x0_0", "x0_0", "x2_0"]
    graph = import_tflite(w.bytes(), dims={"x1_0": Dim("rows", 1, 9)})
    assert [str(v.type.shape[0]) for v in graph.inputs] == ["rows", "rows", "x2_0"]
    with pytest.raises(ImportModelError, match="sizes 3 and rows must be equal"):
        import_tflite(w.bytes(), dims={"x0_0": 3, "x1_0": Dim("rows", 1, 9)})


def test_an_operand_that_decides_a_shape_can_be_given() -> None:
    w = Writer()
    x, axes = w.input((2, 3)), w.input((1,), "int32", name="axes")
    y = w.tensor((2,))
    w.op("SUM", [x, axes], [y], keep_dims=False)
    w.outputs(y)
    with pytest.raises(UnsupportedOpError, match=r"constants=\{'axes': …\} fixes it"):
        import_tflite(w.bytes())
    numbers = floats(2, 3)
    (actual,) = interpreted(w.bytes(), numbers, constants={"axes": [1]})
    np.testing.assert_allclose(actual, numbers.sum(1), rtol=1e-5)


def test_loops_in_loops_that_never_end_are_refused() -> None:
    w = Writer()
    x, y = w.input((2,)), w.tensor((2,))
    w.op("WHILE", [x], [y], cond_subgraph_index=1, body_subgraph_index=2)
    w.outputs(y)
    w.begin()
    w.input((2,))
    w.outputs(w.constant(np.array(True)))
    w.begin()
    a, b = w.input((2,)), w.tensor((2,))
    w.op("WHILE", [a], [b], cond_subgraph_index=1, body_subgraph_index=3)
    w.outputs(b)
    w.begin()
    w.outputs(w.input((2,)))
    with pytest.raises((UnsupportedOpError, ImportModelError), match="more than"):
        import_tflite(w.bytes())


def test_a_loop_whose_end_is_computed_is_refused() -> None:
    w = Writer()
    x, y = w.input((), "int32"), w.tensor((), "int32")
    w.op("WHILE", [x], [y], cond_subgraph_index=1, body_subgraph_index=2)
    w.outputs(y)
    for op, other in (("LESS", 9), ("ADD", 1)):
        w.begin()
        i, result = w.input((), "int32"), w.tensor((), "bool" if op == "LESS" else "int32")
        w.op(op, [i, w.constant(np.array(other, np.int32))], [result])
        w.outputs(result)
    with pytest.raises(UnsupportedOpError, match="number of iterations that is not known"):
        import_tflite(w.bytes())
