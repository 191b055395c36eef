"""Resized images: raised from graphs, as ONNX models and as TOSA programs, in floats and in integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.regions.raised import canonical, check_raised, graph_of, teacher_forced
from support.regions.tosa_samples import F32, U8, Sketch, encoding

import mansard
from mansard.frontends import import_model
from mansard.regions.named import Gather, NamedGraph, Resize
from mansard.regions.named.evaluate import evaluate, nearest_places
from mansard.regions.onnx import onnx_model
from mansard.regions.raising import raise_graph
from mansard.regions.tosa import NoTosaError, write_tosa
from mansard.regions.tosa.evaluate import evaluate as evaluate_tosa
from mansard.regions.tosa.write import refusals


def resizes(named: NamedGraph) -> list[Resize]:
    return [op for op in named.ops if isinstance(op, Resize)]


def onnx_graph(shape: str, sizes: str, attributes: str) -> Any:
    rank = sizes.count(",") + 1
    return graph_of(
        f"(float[{shape}] x) => (float[{','.join('abcd'[:rank])}] z) <int64[{rank}] s = {{{sizes}}}> "
        f"{{ z = Resize<{attributes}>(x, , , s) }}"
    )


@pytest.mark.parametrize(
    ("attributes", "mode", "coordinates"),
    [
        ('mode="linear"', "linear", "half_pixel"),
        ('mode="linear", coordinate_transformation_mode="align_corners"', "linear", "align_corners"),
        ('mode="linear", coordinate_transformation_mode="asymmetric"', "linear", "asymmetric"),
        ('mode="nearest"', "nearest", "half_pixel"),
        ('coordinate_transformation_mode="asymmetric", nearest_mode="floor"', "nearest", "asymmetric"),
        ('coordinate_transformation_mode="align_corners", nearest_mode="floor"', "nearest", "align_corners"),
    ],
)
@pytest.mark.parametrize("sizes", ["1,3,11,17", "1,3,5,4", "1,3,21,36"])
def test_every_mode_and_static_factor_is_one_op(
    attributes: str, mode: str, coordinates: str, sizes: str
) -> None:
    (op,) = resizes(check_raised(onnx_graph("1,3,7,9", sizes, attributes)))
    both = {
        coordinates,
        *(("asymmetric", "half_pixel") if sizes == "1,3,21,36" and mode == "nearest" else ()),
    }
    assert op.mode == mode and op.coordinates in both


@pytest.mark.parametrize(
    "options",
    [
        {"size": (9, 7), "mode": "bilinear"},
        {"size": (9, 13), "mode": "bilinear", "align_corners": True},
        {"size": (13, 7), "mode": "nearest"},
    ],
)
def test_pytorchs_interpolation_is_one_op(options: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.interpolate(x, **options)

    graph = canonical(import_model(torch.export.export(Model(), (torch.zeros(2, 3, 5, 4),))))
    (op,) = resizes(check_raised(graph))
    assert op.mode == options["mode"].removeprefix("bi")


def test_a_dim_that_is_interpolated_alone_is_an_image_of_one_column() -> None:
    (op,) = resizes(check_raised(onnx_graph("2,3,7", "2,3,12", 'mode="linear"')))
    assert op.output.type.shape == (2, 12, 1, 3)


@pytest.mark.parametrize(
    "graph",
    [
        onnx_graph("1,3,7,9", "1,3,12,12", 'mode="cubic"'),
        onnx_graph("1,3,7,9", "1,3,14,9", 'mode="nearest"'),
        graph_of(
            "(float[1,3,7,9] x) => (float[1,3,3,9] z) <int64[3] i = {0,5,2}> { z = Gather<axis=2>(x, i) }"
        ),
    ],
    ids=["cubic", "one dim repeated", "other places"],
)
def test_what_is_no_resized_image_stays_as_it_was(graph: Any) -> None:
    named = check_raised(graph)
    assert not resizes(named) and any(isinstance(op, Gather) for op in named.ops)


def test_a_result_between_the_dims_that_others_read_is_not_folded_away() -> None:
    graph = graph_of(
        "(float[1,3,5,4] x) => (float[1,3,10,4] y, float[1,3,10,8] z) "
        "<int64[4] s = {1,3,10,4}, int64[4] t = {1,3,10,8}> "
        '{ y = Resize<mode="linear">(x, , , s) z = Resize<mode="linear">(y, , , t) }'
    )
    assert len(resizes(check_raised(graph))) == 2


def test_a_quantised_network_with_upsampling_is_one_program_of_integers() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = torch.nn.functional.interpolate(torch.relu(self.first(x)), size=(13, 9), mode="bilinear")
            return self.last(torch.nn.functional.interpolate(wide, scale_factor=2))

    torch.manual_seed(0)
    data = [(torch.randn(1, 3, 8, 8),) for _ in range(2)]
    graph = canonical(import_model(mansard.quantize(Model().eval(), data, scheme="int8")))
    raised = raise_graph(graph)
    teacher_forced(graph, raised.graph)
    assert not raised.reasons and [op.mode for op in resizes(raised.graph)] == ["linear", "nearest"]
    assert {op.name for op in refusals(raised.graph)} <= {"Recode", "Transpose"}


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("size", [(7, 29), (3, 2), (10, 9), (1, 30)])
def test_tosas_integers_are_within_a_step(mode: str, coordinates: str, size: tuple[int, int]) -> None:
    named, x = resized(mode, coordinates, (5, 4), size)
    (result,) = evaluate_tosa(write_tosa(named), [x])
    (wanted,) = evaluate(named, [x])
    steps = np.abs(result.view(np.uint8).astype(int) - wanted.astype(int))
    assert steps.max() <= (0 if mode == "nearest" else 1)


def resized(mode: str, coordinates: str, given: tuple[int, int], wanted: tuple[int, int]) -> Any:
    s = Sketch()
    x = s.input((1, *given, 3), U8, encoding(0.02, 100))
    how = {"mode": mode, "coordinates": coordinates}
    return s.graph(s.add(Resize, (x,), (1, *wanted, 3), U8, encoding(0.02, 100), **how)), s.arrays()[0]


def test_factors_beyond_tosas_are_refused_with_the_reason() -> None:
    with pytest.raises(
        NoTosaError, match=r"TOSA's RESIZE has factors of whole numbers up to 2048, not 2050/"
    ):
        write_tosa(resized("linear", "half_pixel", (7, 4), (1025, 4))[0])
    with pytest.raises(
        NoTosaError, match=r"TOSA's RESIZE makes images less than 16 times smaller, and this is 16 times"
    ):
        write_tosa(resized("linear", "asymmetric", (64, 4), (4, 4))[0])


def test_places_that_floats_would_miss_are_written_as_indices() -> None:
    s = Sketch()
    x = s.input((1, 14, 20, 3), F32)
    named = s.graph(s.add(Resize, (x,), (1, 2, 12, 3), F32, mode="nearest", coordinates="asymmetric"))
    nodes = [node.op_type for node in onnx_model(named).graph.node]
    assert nodes.count("Gather") == 2 and "Resize" not in nodes
    assert nearest_places("asymmetric", 14, 2).tolist() == [0, 7]
