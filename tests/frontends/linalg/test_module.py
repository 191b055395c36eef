"""Whole modules: dims and their names, assertions, arguments, files, errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.frontends.linalg_text import ADD, floats, function, kinds, run

from mansard.dims import Dim
from mansard.errors import ImportModelError, InputError, UnsupportedOpError
from mansard.frontends.linalg.module import import_mlir
from mansard.ir.ops import Assert
from mansard.ir.types import Constant


def test_automatic_dims_that_must_be_equal_are_one() -> None:
    graph = import_mlir(ADD)
    (name,) = graph.dims()
    assert graph.dims()[name].max == 2**31 - 1
    a, b = floats(3, 4), floats(3, 4)
    np.testing.assert_allclose(run(graph, a, b)[0], a + b)
    with pytest.raises(InputError):
        run(graph, a, floats(2, 4))


def test_dims_and_names_can_be_given() -> None:
    seq = Dim("seq", 1, 16, 4)
    graph = import_mlir(ADD, input_names=["x", "y"], dims={"x": [seq, None], "y": [seq, None]})
    assert [v.name for v in graph.inputs] == ["x", "y"]
    assert graph.dims() == {"seq": seq}
    with pytest.raises(ImportModelError, match="rank of 2"):
        import_mlir(ADD, dims={"arg0": [seq]})


def test_a_static_size_fixes_an_automatic_dim() -> None:
    text = ADD.replace("%b: tensor<?x4xf32>", "%s: tensor<3x4xf32>").replace(
        "%e = tensor", "%b = tensor.cast %s : tensor<3x4xf32> to tensor<?x4xf32>\n%e = tensor"
    )
    assert import_mlir(text).outputs[0].type.shape == (3, 4)


def test_sizes_that_cannot_be_equal_are_an_error() -> None:
    wide, narrow = Dim("wide", 5, 9), Dim("narrow", 1, 4)
    with pytest.raises(ImportModelError, match=r"narrow and wide|wide and narrow"):
        import_mlir(ADD, dims={"arg0": [wide, None], "arg1": [narrow, None]})


def test_host_arithmetic_becomes_dim_expressions() -> None:
    """What a slice of ``x[1 : (n + 1) // 2 * 2 - 1]`` leaves behind: no trace in the Graph."""
    graph = import_mlir(
        function(
            "%a: tensor<?xf32>",
            "tensor<?xf32>",
            """
            %c0 = arith.constant 0 : index
            %c1 = arith.constant 1 : i64
            %c2 = arith.constant 2 : i64
            %d = tensor.dim %a, %c0 : tensor<?xf32>
            %n = arith.index_cast %d : index to i64
            %m = arith.addi %n, %c1 : i64
            %h = arith.floordivsi %m, %c2 : i64
            %t = arith.muli %h, %c2 : i64
            %e = arith.subi %t, %c1 : i64
            %neg = arith.cmpi slt, %n, %c1 : i64
            %wrapped = arith.addi %e, %n : i64
            %end = arith.select %neg, %wrapped, %e : i64
            %clipped = arith.minsi %end, %n : i64
            %size64 = arith.subi %clipped, %c1 : i64
            %size = arith.index_cast %size64 : i64 to index
            %r = tensor.extract_slice %a[1] [%size] [1] : tensor<?xf32> to tensor<?xf32>
            return %r : tensor<?xf32>""",
        ),
        dims={"arg0": [Dim("n", 3, 99)]},
    )
    assert kinds(graph) == ["slice"]
    for n in (3, 4, 7, 8):
        a = floats(n)
        np.testing.assert_array_equal(run(graph, a)[0], a[1 : (n + 1) // 2 * 2 - 1])


ASSERTED = function(
    "%a: tensor<?xf32>",
    "tensor<?xf32>",
    """
    %c0 = arith.constant 0 : index
    %limit = arith.constant LIMIT : index
    %d = tensor.dim %a, %c0 : tensor<?xf32>
    %ok = arith.cmpi sle, %d, %limit : index
    cf.assert %ok, "too long"
    return %a : tensor<?xf32>""",
)


@pytest.mark.parametrize(("limit", "asserts"), [(64, 0), (10, 1)])
def test_assertions_are_dropped_when_bounds_prove_them(limit: int, asserts: int) -> None:
    graph = import_mlir(ASSERTED.replace("LIMIT", str(limit)), dims={"arg0": [Dim("n", 5, 64)]})
    assert sum(isinstance(op, Assert) for op in graph.ops) == asserts
    run(graph, floats(8))
    if asserts:
        with pytest.raises(InputError, match="too long"):
            run(graph, floats(11))


def test_an_assertion_that_never_holds_is_an_import_error() -> None:
    with pytest.raises(ImportModelError, match=r"always fails.*too long"):
        import_mlir(ASSERTED.replace("LIMIT", "4"), dims={"arg0": [Dim("n", 5, 64)]})


def test_arguments_can_be_bound_to_data() -> None:
    b = floats(3, 4)
    graph = import_mlir(ADD, constants={1: Constant.of(b, "weight")})
    assert [v.name for v in graph.inputs] == ["arg0"]
    assert [c.key for c in graph.constants.values()] == ["weight"]
    a = floats(3, 4)
    np.testing.assert_allclose(run(graph, a)[0], a + b)


# Errors -----------------------------------------------------------------------------------------
BAD: Sequence[tuple[str, str]] = (
    ("func.func @main( {", "not a valid MLIR module"),
    ("func.func private @main(tensor<2xf32>)", "no function 'main' with a body"),
    (
        function(
            "%a: tensor<2xcomplex<f32>>", "tensor<2xcomplex<f32>>", "return %a : tensor<2xcomplex<f32>>"
        ),
        "complex",
    ),
    (
        function(
            "%a: tensor<4xf32>, %p: tensor<i64>",
            "tensor<?xf32>",
            """%n = tensor.extract %p[] : tensor<i64>
            %i = arith.index_cast %n : i64 to index
            %r = tensor.extract_slice %a[0] [%i] [1] : tensor<4xf32> to tensor<?xf32>
            return %r : tensor<?xf32>""",
        ),
        r"tensor\.extract_slice.*depends on the content of a tensor",
    ),
    (
        function(
            "%a: tensor<4xf32>",
            "tensor<4xf32>",
            """%e = tensor.empty() : tensor<4xf32>
            %r = linalg.softmax dimension(0) ins(%a : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
            return %r : tensor<4xf32>""",
        ),
        r"linalg\.softmax.*supported ops of this dialect: linalg\.fill, linalg\.generic",
    ),
)


@pytest.mark.parametrize(("text", "message"), BAD)
def test_errors(text: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((ImportModelError, UnsupportedOpError), match=message):
        import_mlir(text)
    captured = capfd.readouterr()
    assert captured.err == ""


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "add.mlir"
    path.write_text(ADD)
    assert len(import_mlir(path).ops) == 1
    with pytest.raises(ImportModelError, match=r"cannot read .*missing\.mlir"):
        import_mlir(tmp_path / "missing.mlir")
