"""A compiled module is called as the module is, and returns what the module returns."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import mansard
from mansard.errors import ArtifactError, CompileError, InputError
from mansard.plan.check import check_plan
from mansard.plan.interface import Interface, Parameter, Structure
from mansard.plan.serialise import plan_from_json, plan_to_json


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Nested(torch.nn.Module):
    """Takes and returns structures, numbers and None."""

    def forward(
        self,
        x: torch.Tensor,
        parts: dict[str, torch.Tensor],
        mask: torch.Tensor | None = None,
        k: float = 2.0,
        *,
        flag: bool = True,
    ) -> dict[str, Any]:
        y = x * k + parts["a"] if flag else x - parts["a"]
        if mask is not None:
            y = y * mask
        return {"y": y, "pair": (y + 1, None, 3), "list": [y.sum()], "named": Pair(y - 1, y * 2)}


X, PARTS = torch.arange(6.0).reshape(2, 3), {"a": torch.ones(3)}


@pytest.fixture(scope="module")
def nested() -> mansard.Model:
    return mansard.compile(Nested(), (X, PARTS), devices="cpu")


def assert_equal(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_equal(actual[key], expected[key])
    elif isinstance(expected, (tuple, list)):
        for a, b in zip(actual, expected, strict=True):
            assert_equal(a, b)
    else:
        assert actual == expected


def test_results_have_the_structure_of_the_modules(nested: mansard.Model) -> None:
    assert_equal(nested(X, PARTS), Nested()(X, PARTS))


def test_arguments_by_name_and_defaults_spelt_out(nested: mansard.Model) -> None:
    expected = Nested()(X, PARTS)
    assert_equal(nested(parts=PARTS, x=X), expected)
    assert_equal(nested(X, PARTS, None, 2, flag=True), expected)


def test_inputs_by_their_own_names(nested: mansard.Model) -> None:
    assert [spec.name for spec in nested.inputs] == ["x", "parts_a"]
    assert_equal(nested(x=X, parts_a=PARTS["a"]), Nested()(X, PARTS))


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((X,), {}, r"missing a required argument: 'parts'; the model takes \(x, parts, mask=None, k=2.0"),
        ((X, PARTS), {"k": 3.0}, r"'k' was not among the example inputs, so that its default is compiled in"),
        ((X, PARTS), {"mask": X}, "'mask' was not among the example inputs"),
        ((X, PARTS), {"flag": False}, "'flag' was not among the example inputs"),
        ((X, PARTS), {"flag": None}, "'flag' was not among the example inputs"),
        ((X, PARTS), {"other": 1}, "unexpected keyword argument 'other'"),
        ((X, [X]), {}, "parts is a list of 1, but the model was compiled with a dict of 'a'"),
        ((X, {"b": X}), {}, "parts is a dict of 'b', but the model was compiled with a dict of 'a'"),
        ((X, {"a": None}), {}, r"parts\['a'\] is None, but the model was compiled with a tensor there"),
        ((None, PARTS), {}, "x is None, but the model was compiled with a tensor there"),
        ((X, PARTS, None, 2.0, True), {}, "too many positional arguments"),
    ],
)
def test_other_arguments_are_refused(
    nested: mansard.Model, args: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        nested(*args, **named)


def test_numbers_and_none_among_the_example_inputs() -> None:
    with mansard.compile(
        Nested(), {"x": X, "parts": PARTS, "k": 3.0}, kwargs={"mask": X, "flag": False}, devices="cpu"
    ) as model:
        arguments = {"x": X, "parts": PARTS, "mask": X, "flag": False}
        assert_equal(model(**arguments, k=3.0), Nested()(**arguments, k=3.0))
        with pytest.raises(InputError, match=r"'k' is missing: its default is 2.0, but .* with it as 3.0"):
            model(**arguments)
        with pytest.raises(InputError, match=r"k is 2.5, but the model was compiled with 3.0 there"):
            model(**arguments, k=2.5)
        with pytest.raises(InputError, match=r"'mask' is missing: its default is None, .* with a tensor"):
            model(X, PARTS, k=3.0, flag=False)


def test_variable_arguments() -> None:
    class Sum(torch.nn.Module):
        def forward(self, *args: torch.Tensor, **named: torch.Tensor) -> tuple[torch.Tensor]:
            return (sum(args) + named["last"],)  # type: ignore[return-value]

    with mansard.compile(Sum(), (X, X), kwargs={"last": X}, devices="cpu") as model:
        assert_equal(model(X, X, last=X), (3 * X,))
        with pytest.raises(InputError, match=r"args is a tuple of 1, but .* a tuple of 2"):
            model(X, last=X)


def test_batches_keep_the_structure() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"double": x * 2}

    with mansard.compile(Scaled(), X[:1], devices="cpu") as model:
        assert_equal(model.run_in_batches(X), {"double": X * 2})


def test_a_dataclass_is_taken_and_returned() -> None:
    @dataclasses.dataclass
    class Point:
        x: torch.Tensor
        y: torch.Tensor

    torch.export.register_dataclass(Point, serialized_type_name="test.Point")
    globals()["Point"] = Point
    Point.__qualname__ = "Point"

    class Mirrored(torch.nn.Module):
        def forward(self, point: Point) -> Point:
            return Point(point.y, point.x * 2)

    with mansard.compile(Mirrored(), (Point(X, X + 1),), devices="cpu") as model:
        result = model(Point(X, X + 1))
    assert type(result) is Point
    assert torch.equal(result.x, X + 1) and torch.equal(result.y, X * 2)


def test_a_saved_model_returns_structures_where_their_classes_are_missing(
    nested: mansard.Model, tmp_path: Path
) -> None:
    path = tmp_path / "nested.mansard"
    nested.save(path)
    code = (
        "import sys, numpy as np, mansard\n"
        f"model = mansard.load({str(path)!r})\n"
        "r = model(np.zeros((2, 3), np.float32), {'a': np.ones(3, np.float32)})\n"
        "assert r['pair'][1] is None and r['pair'][2] == 3 and float(r['list'][0]) == 6\n"
        "named = r['named']\n"
        "assert named.first is named['first'] is named[0] and list(named) == ['first', 'second']\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_keywords_of_frontends() -> None:
    with pytest.raises(CompileError, match="'dims' is given twice"):
        mansard.compile(Nested(), (X, PARTS), dims={}, frontend_options={"dims": {}})
    with pytest.raises(CompileError, match="takes no argument 'opset'"):
        mansard.compile(Nested(), (X, PARTS), frontend_options={"opset": 3})
    with pytest.raises(TypeError, match="unexpected keyword argument 'dynamic_shape'"):
        mansard.compile(Nested(), (X, PARTS), dynamic_shape={})  # type: ignore[call-arg]


def test_a_plan_with_a_wrong_interface_is_refused(nested: mansard.Model) -> None:
    tensor = Structure("tensor", 0)
    deep = tensor
    for _ in range(50):
        deep = Structure("list", children=(deep,))
    assert Interface((Parameter("x", "POSITIONAL_OR_KEYWORD", tensor),), deep).problem(1, 1) == ""
    wrong = {
        "not each of 2 once": Interface((Parameter("x", "POSITIONAL_OR_KEYWORD", tensor),), tensor),
        "an output beyond": Interface(nested.plan.interface.parameters, Structure("tensor", 9)),  # type: ignore[union-attr]
        "of kind": Interface(nested.plan.interface.parameters, Structure("program")),  # type: ignore[union-attr]
        "is not JSON": Interface(nested.plan.interface.parameters, Structure("constant", value="{")),  # type: ignore[union-attr]
        "not those of a function": Interface(
            (Parameter("x", "SELF", Structure("tuple", children=(tensor, Structure("tensor", 1)))),), tensor
        ),
    }
    for message, interface in wrong.items():
        with pytest.raises(ArtifactError, match=message):
            check_plan(dataclasses.replace(nested.plan, interface=interface))
    assert plan_from_json(plan_to_json(nested.plan)).interface == nested.plan.interface


def test_arrays_of_numpy_and_results_of_one_tensor(nested: mansard.Model) -> None:
    result = nested(X.numpy(), {"a": np.ones(3, np.float32)})
    assert isinstance(result["y"], np.ndarray) and result["pair"][1] is None
