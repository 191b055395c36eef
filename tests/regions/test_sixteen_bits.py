"""Networks with 16-bit values and 8-bit weights: raised, as ONNX models, as TOSA programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.regions.raised import canonical, run_onnx, teacher_forced
from torch import nn

import mansard
from mansard.dtypes import DType
from mansard.frontends import import_model
from mansard.ir.graph import Graph
from mansard.regions.named import Conv, MatMul, NamedGraph, Recode
from mansard.regions.named.evaluate import evaluate
from mansard.regions.named.sixteen_bits import with_one_width, with_unsigned_values
from mansard.regions.onnx import onnx_bytes, onnx_model
from mansard.regions.raising import raise_graph
from mansard.regions.tosa.write import refusals


class Network(nn.Module):
    """Convolutions, one of them depthwise, a sum, a pool, a mean and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.deep, self.last = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1)
        self.classifier = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        y = nn.functional.max_pool2d(y + self.last(nn.functional.relu6(self.deep(y))), 2)
        return self.classifier(y.mean((2, 3)))


@pytest.fixture(scope="module", params=["int16", "mixed"])
def quantised(request: pytest.FixtureRequest) -> tuple[Graph, NamedGraph, np.ndarray]:
    torch.manual_seed(0)
    data = [(torch.randn(1, 3, 12, 12),) for _ in range(2)]
    model = mansard.quantize(Network().eval(), data, scheme=request.param, budget=0.5)
    graph = canonical(import_model(model))
    raised = raise_graph(graph)
    assert not raised.reasons
    return graph, raised.graph, data[0][0].numpy()


def test_products_are_of_16_bit_values_with_8_bit_weights(quantised) -> None:
    graph, named, _ = quantised
    teacher_forced(graph, named)
    factors = [
        tuple(value.type.dtype for value in op.inputs[:2])
        for op in named.ops
        if isinstance(op, (Conv, MatMul))
    ]
    assert len(factors) == 4 and (DType.I16, DType.I8) in factors
    assert all(first in (DType.I16, DType.U8) and second is DType.I8 for first, second in factors)


def test_onnx_runtime_answers_within_two_steps(quantised) -> None:
    _, named, x = quantised
    (result,), (wanted,) = run_onnx(onnx_bytes(named), named, [x]), evaluate(named, [x])
    last = named.producers()[named.outputs[0]]
    assert np.abs(result - wanted).max() <= 2.01 * named.encodings[last.inputs[0]].scale
    nodes = onnx_model(named).graph.node
    wide = [node for node in nodes if node.domain == "com.microsoft"]
    assert {node.op_type for node in wide} == {"QuantizeLinear", "DequantizeLinear"}


def test_all_but_the_floats_at_either_end_has_a_form_in_tosa(quantised) -> None:
    _, named, _ = quantised
    assert all(isinstance(op, Recode) for op in refusals(named))


def test_one_width_within_an_op_and_values_without_a_sign_are_the_same_numbers(quantised) -> None:
    _, named, x = quantised
    other = with_unsigned_values(with_one_width(named))
    for op in other.ops:
        values = [v for v in (*op.inputs, op.output) if v in other.encodings and v not in other.constants]
        assert isinstance(op, Recode) or len({v.type.dtype for v in values}) <= 1
        assert all(v.type.dtype is not DType.I16 for v in values)
    last = named.producers()[named.outputs[0]]
    mixed = any(v.type.dtype is DType.U8 for op in named.ops for v in op.inputs)
    step = named.encodings[last.inputs[0]].scale
    (wanted,) = evaluate(named, [x])
    for results in (evaluate(other, [x]), run_onnx(onnx_bytes(other), other, [x])):
        assert np.abs(results[0] - wanted).max() <= (0.02 * np.abs(wanted).max() if mixed else 2.01 * step)
