"""Products with weights of a few bits against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

import mansard
from mansard.errors import UnsupportedOpError

ROWS = 24
RNG = np.random.default_rng(5)


def model(
    depth: int, block: int, bits: int, points: str | None, *, dtype: Any = np.float32, bias: bool = False
) -> ModelProto:
    """A product with a random matrix; ``points``: no zero points, packed ones, or real ones."""
    blocks = -(-depth // block)
    arrays = {
        "w": RNG.integers(0, 256, (ROWS, blocks, block * bits // 8), np.uint8),
        "s": (RNG.random(ROWS * blocks) / 8 + 0.01).astype(dtype),
    }
    if points == "packed":
        arrays["z"] = RNG.integers(0, 256, ROWS * -(-blocks * bits // 8), np.uint8)
    elif points == "real":
        arrays["z"] = (RNG.random(ROWS * blocks) * 8 + 4).astype(dtype)
    if bias:
        arrays["b"] = RNG.standard_normal(ROWS).astype(dtype)
    names = ["a", "w", "s", "z" if points else "", "", "b" if bias else ""]
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "MatMulNBits", names, ["y"], domain="com.microsoft", K=depth, N=ROWS, bits=bits, block_size=block
    )
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("a", kind, ["batch", 3, depth])],
        [helper.make_tensor_value_info("y", kind, ["batch", 3, ROWS])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


# Of 64 rows, and of 80, whose last block is not full; 96 are an odd number of whole blocks.
FORMS = [
    *((depth, 32, 4, points) for depth in (64, 80) for points in (None, "packed", "real")),
    (96, 32, 4, "packed"),
    *(pytest.param(96, 32, 4, points, marks=pytest.mark.slow) for points in (None, "real")),
    *((64, 16, 8, points) for points in (None, "packed")),
]


@pytest.mark.parametrize(("depth", "block", "bits", "points"), FORMS)
def test_products(depth: int, block: int, bits: int, points: str | None) -> None:
    proto = model(depth, block, bits, points, bias=points is None)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    with mansard.compile(proto, devices="cpu") as compiled:
        for batch in (1, 4):
            a = RNG.standard_normal((batch, 3, depth)).astype(np.float32)
            (expected,) = session.run(None, {"a": a})
            np.testing.assert_allclose(np.asarray(compiled(a)), expected, rtol=1e-4, atol=1e-4)


def test_halves_are_added_in_f32() -> None:
    proto = model(64, 32, 4, "packed", dtype=np.float16)
    a = RNG.standard_normal((2, 3, 64)).astype(np.float16)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"a": a})
    with mansard.compile(proto, devices="cpu") as compiled:
        result = np.asarray(compiled(a))
    assert result.dtype == np.float16
    np.testing.assert_allclose(result.astype(np.float32), expected.astype(np.float32), rtol=2e-3, atol=2e-2)


def test_the_matrix_stays_as_it_is_stored() -> None:
    with mansard.compile(model(64, 32, 4, None), devices="cpu") as compiled:
        weights = sum(v.bytes for v in compiled.plan.values if v.kind == "constant")
    codes, scales, alignment = ROWS * 64 // 2, ROWS * 2 * 4, 512
    assert weights <= codes + scales + alignment < ROWS * 64 * 4


def test_what_is_not_supported_is_named() -> None:
    proto = model(64, 32, 4, None)
    proto.graph.node[0].attribute[2].i = 2
    with pytest.raises(UnsupportedOpError, match=r"com.microsoft.MatMulNBits.*weights of 2 bits"):
        mansard.compile(proto, devices="cpu")
