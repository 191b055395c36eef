"""Resize of dims that vary, to dims that vary, against ONNX's reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from mansard import Dim
from mansard.errors import UnsupportedOpError
from mansard.frontends.onnx.importer import import_onnx
from mansard.ir.interpreter.graph import interpret

SIZES = ((4, 7), (7, 4), (5, 1), (1, 3), (6, 6), (3, 12))


def model_of(how: str, last: str = "m"):
    return parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        resized (float[1, 2, n, 3] x, float[1, 2, m, {last}] like) => (float[1, 2, m, {last}] y)
        {{
            sizes = Shape(like)
            y = Resize <{how}> (x, , , sizes)
        }}
        """
    )


@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
@pytest.mark.parametrize(
    "kind",
    [
        'mode = "linear"',
        'mode = "nearest", nearest_mode = "floor"',
        'mode = "nearest", nearest_mode = "ceil"',
        'mode = "nearest", nearest_mode = "round_prefer_floor"',
    ],
)
def test_sizes_that_are_no_multiples(kind: str, mode: str) -> None:
    model = model_of(f'{kind}, coordinate_transformation_mode = "{mode}"')
    graph = import_onnx(model, dims={"n": Dim("n", 1, 16), "m": Dim("m", 1, 16)})
    rng = np.random.default_rng(0)
    for old, new in SIZES:
        inputs = [rng.standard_normal(s).astype(np.float32) for s in ((1, 2, old, 3), (1, 2, new, new))]
        (expected,) = ReferenceEvaluator(model).run(None, dict(zip(("x", "like"), inputs, strict=True)))
        (result,) = interpret(graph, inputs)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5, err_msg=f"{old} to {new}")


def test_what_is_unknown_is_named() -> None:
    for how, message in (
        ('mode = "cubic"', "a symbolic dim, cubic by half_pixel"),
        ('mode = "linear", keep_aspect_ratio_policy = "not_larger"', "not_larger"),
    ):
        with pytest.raises(UnsupportedOpError, match=message):
            import_onnx(model_of(how))
