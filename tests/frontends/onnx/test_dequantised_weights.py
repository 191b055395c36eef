"""Products with matrices that DequantizeLinear makes floats of stay products with small integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import mansard
from mansard.errors import UnsupportedOpError

pytestmark = pytest.mark.variants(2)

DEPTH, COLUMNS, BLOCK = 256, 97, 32
RNG = np.random.default_rng(11)
RANGES = {
    TensorProto.INT4: (-8, 8), TensorProto.UINT4: (0, 16), TensorProto.INT8: (-128, 128),
    TensorProto.UINT8: (0, 256),
}  # fmt: skip


def model(
    element: int,
    axis: int,
    *,
    block: int,
    zero: bool,
    transposed: bool = False,
    per_tensor: bool = False,
    columns: int = COLUMNS,
) -> tuple[ModelProto, Any]:
    """A product with a stored matrix, and the matrix as floats."""
    low, high = RANGES[element]
    shape = (columns, DEPTH) if transposed else (DEPTH, columns)
    codes = RNG.integers(low, high, shape)
    few: tuple[int, ...] = (shape[axis],)
    if block:
        few = tuple(size // block if d == axis else size for d, size in enumerate(shape))
    few = () if per_tensor else few
    scale = (RNG.random(few) / 8 + 0.01).astype(np.float32)
    zeros = RNG.integers(low, high, few) if zero else np.zeros(few, np.int64)
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["w", "s", *(["z"] if zero else [])], ["d"], axis=axis, block_size=block
        ),
        helper.make_node("Gemm", ["x", "d"], ["y"], transB=1)
        if transposed
        else helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    tensors = [
        helper.make_tensor("w", element, shape, codes.ravel()),
        numpy_helper.from_array(np.asarray(scale), "s"),
        *([helper.make_tensor("z", element, few, zeros.ravel())] if zero else []),
    ]
    lead = ["b"] if transposed else ["b", 3]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*lead, DEPTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*lead, columns])],
        tensors,
    )

    def spread(values: Any) -> Any:
        if block:
            return values.repeat(block, axis)
        return values if values.ndim == 0 else np.expand_dims(values, 1 - axis)

    dense = (codes - spread(np.asarray(zeros))) * spread(np.asarray(scale)).astype(np.float64)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return proto, dense.T if transposed else dense


FORMS = [
    {"axis": 0, "block": BLOCK},
    {"axis": 1, "block": 0},
    {"axis": 1, "block": BLOCK, "transposed": True},
    {"axis": 0, "block": 0, "transposed": True},
    {"axis": 1, "block": 0, "per_tensor": True},
]


def constants(compiled: mansard.Model) -> int:
    return sum(int(str(value.bytes)) for value in compiled.plan.values if value.kind == "constant")


CASES = [(element, form, zero) for element in RANGES for form in FORMS for zero in (False, True)]
ON_VULKAN = CASES[3::7]
"""Some of each."""


def pairwise(element: int, form: dict[str, Any], zero: bool) -> bool:
    """Half of the cases: each element with each form, and both with and without zero points."""
    return (list(RANGES).index(element) + FORMS.index(form) + zero) % 2 == 0


@pytest.mark.parametrize(
    ("element", "form", "zero", "device"),
    [
        *(pytest.param(*c, "cpu", marks=[] if pairwise(*c) else [pytest.mark.slow]) for c in CASES),
        *(pytest.param(*case, "vulkan", marks=pytest.mark.vulkan) for case in ON_VULKAN),
    ],
    ids=str,
)
def test_products(element: int, form: dict[str, Any], zero: bool, device: str) -> None:
    proto, dense = model(element, zero=zero, **form)
    shape = (2, DEPTH) if form.get("transposed") else (2, 3, DEPTH)
    x = RNG.standard_normal(shape).astype(np.float32)
    with mansard.compile(proto, devices=device) as compiled:
        expected = x @ dense
        np.testing.assert_allclose(
            np.asarray(compiled(x)), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()
        )
        bits = 4 if element in (TensorProto.INT4, TensorProto.UINT4) else 8
        assert constants(compiled) < 1.6 * DEPTH * COLUMNS * bits / 8


@pytest.mark.parametrize(
    "form",
    [
        {"axis": 1, "block": BLOCK, "columns": 96},
        {"axis": 0, "block": 0},
        {"axis": 0, "block": BLOCK, "columns": 16},
    ],
    ids=str,
)
def test_scales_across_the_sum_and_small_matrices_become_floats(form: dict[str, Any]) -> None:
    proto, dense = model(TensorProto.INT4, zero=True, **form)
    x = RNG.standard_normal((2, 3, DEPTH)).astype(np.float32)
    with mansard.compile(proto, devices="cpu") as compiled:
        expected = x @ dense
        np.testing.assert_allclose(
            np.asarray(compiled(x)), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()
        )


@pytest.mark.parametrize("element", [TensorProto.INT4, TensorProto.UINT4], ids=TensorProto.DataType.Name)
def test_external_data(tmp_path: Path, element: int) -> None:
    proto, dense = model(element, axis=0, block=BLOCK, zero=True)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    x = RNG.standard_normal((1, 3, DEPTH)).astype(np.float32)
    with mansard.compile(tmp_path / "m.onnx", devices="cpu") as compiled:
        np.testing.assert_allclose(np.asarray(compiled(x)), x @ dense, rtol=1e-4, atol=1e-3)


def test_other_ops_do_not_take_four_bits() -> None:
    w = helper.make_tensor("w", TensorProto.INT4, (4, 6), np.zeros(24, np.int64))
    graph = helper.make_graph(
        [helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 6])],
        [w],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(UnsupportedOpError, match="'w' of i4, which DequantizeLinear alone takes"):
        mansard.compile(proto, devices="cpu")
