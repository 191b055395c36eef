"""TOSA programs of named ops: their integers, what cannot be written, and RESCALE's arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from support.regions.tosa_samples import F32, I8, U8, Sketch, encoding, samples

from mansard.regions.named import Elementwise, Recode, Softmax
from mansard.regions.named.evaluate import evaluate as named_evaluate
from mansard.regions.tosa import NoTosaError, write_tosa
from mansard.regions.tosa.evaluate import evaluate
from mansard.regions.tosa.rescale import apply_scale, multiplier_and_shift
from mansard.regions.tosa.write import refusals

SAMPLES = {name: (sketch, graph) for name, sketch, graph in samples()}


def run(name):
    sketch, graph = SAMPLES[name]
    arrays = sketch.arrays()
    outputs = evaluate(write_tosa(graph), arrays)
    return graph, arrays, [o.view(v.type.dtype.numpy) for o, v in zip(outputs, graph.outputs, strict=True)]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_integers_from_end_to_end(name):
    _, graph = SAMPLES[name]
    program = write_tosa(graph)
    assert {dtype for dtype, _ in program.tensors.values()} <= {"INT8", "INT16", "INT32", "INT48"}
    made = {*program.inputs, *program.constants}
    for op in program.ops:
        assert set(op.inputs) <= made
        made.add(op.output)
    assert set(program.outputs) <= made


def test_a_convolution_is_within_one_step_of_its_real_numbers():
    graph, (x,), (result,) = run("convolution")
    weights, bias = (np.asarray(graph.constants[v].load(), np.float64) for v in graph.ops[0].inputs[1:])
    scales = np.array(graph.encodings[graph.ops[0].inputs[1]].scales)
    image = np.pad((x.astype(np.float64) - 128) * 0.02, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (1, 2))[:, ::2, ::2]
    real = np.einsum("nhwcij,oijc->nhwo", windows, weights * scales[:, None, None, None]) + bias
    expected = np.clip(np.rint(real / 0.05) + 3, 0, 255)
    assert np.abs(result - expected).max() <= 1
    assert (result != expected).mean() < 0.01


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.startswith("16 bits")])
def test_values_of_16_bits_are_within_two_steps_of_their_real_numbers(name):
    graph, arrays, results = run(name)
    assert {v.type.dtype.numpy for v in graph.outputs} <= {np.dtype(np.int16), np.dtype(np.int8)}
    for result, wanted in zip(results, named_evaluate(graph, arrays), strict=True):
        assert np.ptp(result.astype(np.int64)) > 100
        assert np.abs(result.astype(np.int64) - wanted.astype(np.int64)).max() <= 2


def test_a_function_of_one_tensor_is_one_table():
    graph, (x,), (result,) = run("silu")
    assert [op.kind for op in write_tosa(graph).ops] == ["RESCALE", "TABLE"]
    real = (x.astype(np.float32) - 120) * np.float32(0.03)
    expected = np.clip(np.rint(real / (1 + np.exp(-real)) / np.float32(0.02)) - 100, -128, 127)
    np.testing.assert_array_equal(result, expected)


def test_rescaling_is_exact_where_the_scale_is():
    for scale in (0.5, 0.75, 3.0, 2.0**-40, 1e-3, 0.9999999999):
        multiplier, shift = multiplier_and_shift(scale)
        assert 2 <= shift <= 62
        assert abs(Fraction(multiplier, 1 << shift) / Fraction(scale) - 1) <= Fraction(1, 1 << 30)
    values = np.array([-3, -2, -1, 1, 2, 3])
    half = tuple(np.array([number]) for number in multiplier_and_shift(0.5))
    assert apply_scale(values, *half).tolist() == [-1, -1, 0, 1, 1, 2]  # halves up
    assert apply_scale(values, *half, double_round=True).tolist() == [-1, -1, 0, 1, 1, 2]
    tiny = tuple(np.array([number]) for number in multiplier_and_shift(2.0**-3))
    assert apply_scale(np.array([-4, 4]), *tiny, double_round=True).tolist() == [-1, 1]  # away from zero
    assert apply_scale(np.array([-4, 4]), *tiny).tolist() == [0, 1]
    for scale in (0.0, -1.0, float("inf"), float("nan"), 2.0**40):
        with pytest.raises(ValueError, match="a scale of"):
            multiplier_and_shift(scale)


def test_ops_without_an_integer_form_are_left_out_with_what_needs_them():
    s = Sketch()
    shape = (1, 4, 4, 8)
    x = s.input(shape, U8, encoding(0.02, 128))
    y = s.conv(x, 8, 1, None, F32)
    soft = s.add(Softmax, (y,), shape, F32, axis=3)
    back = s.add(Recode, (soft,), shape, I8, encoding(0.01))
    after = s.conv(back, 4, 1, encoding(0.1))
    graph = s.graph(after)
    reasons = {op.name: reason for op, reason in refusals(graph).items() if op is not graph.ops[0]}
    assert reasons["Softmax"] == "TOSA has no Softmax, and it is not composed of others here"
    assert "is f32; integers alone can enter" in reasons["Recode"]
    assert refusals(graph)[graph.ops[0]] == "its result is f32, and what reads it is on another device"
    assert graph.ops[-1] not in refusals(graph)
    with pytest.raises(NoTosaError, match="TOSA has no Softmax"):
        write_tosa(graph)


def test_what_32_bits_cannot_hold_is_refused():
    s = Sketch()
    x = s.input((1, 2, 2, 4), U8, encoding(1e-9, 0))
    with pytest.raises(NoTosaError, match="its bias exceeds 32 bits"):
        write_tosa(s.graph(s.conv(x, 4, 1, encoding(0.1))))
    s = Sketch()
    real = s.add(Elementwise, (s.input((4,), F32),), (4,), F32, op="neg")
    with pytest.raises(NoTosaError, match="is f32; integers alone can enter"):
        write_tosa(s.graph(s.add(Recode, (real,), (4,), I8, encoding(0.1))))
