"""``linalg`` ops as Generics: loop orders, reductions, indices."""

from __future__ import annotations

import numpy as np
import pytest
from support.frontends.linalg_text import floats, function, kinds, run

from mansard.errors import ModelAssertionError, UnsupportedOpError
from mansard.frontends.linalg.module import import_mlir
from mansard.ir.graph import Graph
from mansard.ir.ops import Assert, Generic


def test_matmul_is_one_generic() -> None:
    graph = import_mlir(
        function(
            "%a: tensor<3x4xf32>, %b: tensor<4x5xf32>",
            "tensor<3x5xf32>",
            """
            %z = arith.constant 0.0 : f32
            %e = tensor.empty() : tensor<3x5xf32>
            %i = linalg.fill ins(%z : f32) outs(%e : tensor<3x5xf32>) -> tensor<3x5xf32>
            %r = linalg.matmul ins(%a, %b : tensor<3x4xf32>, tensor<4x5xf32>)
                               outs(%i : tensor<3x5xf32>) -> tensor<3x5xf32>
            return %r : tensor<3x5xf32>""",
        )
    )
    (op,) = graph.ops
    assert isinstance(op, Generic)
    assert (op.extents, op.combiner) == ((3, 5, 4), "add")
    a, b = floats(3, 4), floats(4, 5)
    np.testing.assert_allclose(run(graph, a, b)[0], a @ b, rtol=1e-6)


def test_an_initial_value_is_combined_after_the_reduction() -> None:
    graph = import_mlir(
        function(
            "%a: tensor<3x4xf32>, %b: tensor<4x5xf32>, %c: tensor<3x5xf32>",
            "tensor<3x5xf32>",
            """
            %r = linalg.matmul ins(%a, %b : tensor<3x4xf32>, tensor<4x5xf32>)
                               outs(%c : tensor<3x5xf32>) -> tensor<3x5xf32>
            return %r : tensor<3x5xf32>""",
        )
    )
    a, b, c = floats(3, 4), floats(4, 5), floats(3, 5)
    np.testing.assert_allclose(run(graph, a, b, c)[0], c + a @ b, rtol=1e-5)


def test_loops_are_put_in_the_results_order() -> None:
    """The reduced loop comes first and the output is transposed."""
    graph = import_mlir(
        function(
            "%a: tensor<4x3x5xf32>, %o: tensor<5x3xf32>",
            "tensor<5x3xf32>",
            """
            %r = linalg.generic {indexing_maps = [#in, #out],
                iterator_types = ["reduction", "parallel", "parallel"]}
                ins(%a : tensor<4x3x5xf32>) outs(%o : tensor<5x3xf32>) {
            ^bb0(%x: f32, %y: f32):
              %s = arith.maximumf %y, %x : f32
              linalg.yield %s : f32
            } -> tensor<5x3xf32>
            return %r : tensor<5x3xf32>""",
            "#in = affine_map<(d0, d1, d2) -> (d0, d1, d2)>\n#out = affine_map<(d0, d1, d2) -> (d2, d1)>",
        )
    )
    a, o = floats(4, 3, 5), floats(5, 3)
    np.testing.assert_array_equal(run(graph, a, o)[0], np.maximum(a.max(0).T, o))


def test_a_constant_zero_in_the_output_map_is_a_kept_dim() -> None:
    graph = import_mlir(
        function(
            "%a: tensor<3x4xf32>",
            "tensor<3x1xf32>",
            """
            %z = arith.constant dense<0.0> : tensor<3x1xf32>
            %r = linalg.generic {indexing_maps = [#in, #out], iterator_types = ["parallel", "reduction"]}
                ins(%a : tensor<3x4xf32>) outs(%z : tensor<3x1xf32>) {
            ^bb0(%x: f32, %y: f32):
              %s = arith.addf %x, %y : f32
              linalg.yield %s : f32
            } -> tensor<3x1xf32>
            return %r : tensor<3x1xf32>""",
            "#in = affine_map<(d0, d1) -> (d0, d1)>\n#out = affine_map<(d0, d1) -> (d0, 0)>",
        )
    )
    a = floats(3, 4)
    assert graph.outputs[0].type.shape == (3, 1)
    np.testing.assert_allclose(run(graph, a)[0], a.sum(1, keepdims=True), rtol=1e-6)


def reduction(body: str, start: str) -> str:
    """A function that reduces the rows of a 3x7 tensor by a body of ``%x`` and the running ``%y``."""
    return function(
        "%a: tensor<3x7xf32>",
        "tensor<3xf32>",
        f"""
        %z0 = arith.constant dense<{start}> : tensor<3xf32>
        %r = linalg.generic {{indexing_maps = [#in, #out], iterator_types = ["parallel", "reduction"]}}
            ins(%a : tensor<3x7xf32>) outs(%z0 : tensor<3xf32>) {{
        ^bb0(%x: f32, %y: f32):
          {body}
          linalg.yield %s : f32
        }} -> tensor<3xf32>
        return %r : tensor<3xf32>""",
        "#in = affine_map<(d0, d1) -> (d0, d1)>\n#out = affine_map<(d0, d1) -> (d0)>",
    )


IGNORING_NAN = {
    "maxnumf": ("%s = arith.maxnumf %x, %y : f32", -np.inf, np.fmax),
    "minnumf": ("%s = arith.minnumf %y, %x : f32", np.inf, np.fmin),
    "ordered maximum": (
        "%c = arith.cmpf ogt, %x, %y : f32\n%s = arith.select %c, %x, %y : f32", -np.inf, np.fmax),
    "ordered minimum": (
        "%c = arith.cmpf ogt, %y, %x : f32\n%s = arith.select %c, %x, %y : f32", np.inf, np.fmin),
    "maximumf": ("%s = arith.maximumf %x, %y : f32", -np.inf, np.maximum),
    "minimumf": ("%s = arith.minimumf %x, %y : f32", np.inf, np.minimum),
}  # fmt: skip


@pytest.mark.parametrize("case", IGNORING_NAN)
def test_extremes_ignore_or_give_nan_as_they_say(case: str) -> None:
    body, start, meaning = IGNORING_NAN[case]
    graph = import_mlir(reduction(body, "0x7F800000" if start > 0 else "0xFF800000"))
    a = floats(3, 7)
    a[0, 2] = a[1, 0] = a[1, 6] = np.nan
    np.testing.assert_array_equal(run(graph, a)[0], meaning.reduce(a, axis=1))


REDUCTIONS = {
    "maximum by select": (
        "%c = arith.cmpf ogt, %x, %y : f32\n%s = arith.select %c, %x, %y : f32", -np.inf, "max"),
    "minimum by select": (
        "%c = arith.cmpf olt, %y, %x : f32\n%s = arith.select %c, %y, %x : f32", np.inf, "min"),
    "difference": ("%s = arith.subf %y, %x : f32", 0.0, "neg"),
    "guarded sum": (
        "%z = arith.constant 0.5 : f32\n%c = arith.cmpf ogt, %x, %z : f32\n%t = arith.addf %y, %x : f32\n"
        "%s = arith.select %c, %t, %y : f32",
        0.0,
        "guarded",
    ),
    "wide sum": (
        "%w = arith.extf %y : f32 to f64\n%v = arith.extf %x : f32 to f64\n%t = arith.addf %w, %v : f64\n"
        "%s = arith.truncf %t : f64 to f32",
        0.0,
        "sum",
    ),
    "lowest finite float": ("%s = arith.maximumf %x, %y : f32", -3.40282347e38, "max"),
}  # fmt: skip


@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions_are_recognised(case: str) -> None:
    body, start, expected = REDUCTIONS[case]
    literal = {np.inf: "0x7F800000", -np.inf: "0xFF800000"}.get(start, repr(start))
    graph = import_mlir(reduction(body, literal))
    a = floats(3, 7)
    wanted = {
        "max": a.max(1),
        "min": a.min(1),
        "neg": -a.sum(1),
        "sum": a.sum(1),
        "guarded": np.where(a > 0.5, a, 0).sum(1),
    }[expected]
    np.testing.assert_allclose(run(graph, a)[0], wanted, rtol=1e-5)
    first = graph.ops[0]
    assert isinstance(first, Generic)
    assert first.combiner in ("max", "min", "add")
    if case == "lowest finite float":
        assert len(graph.ops) == 1


def arg_extreme(predicate: str, order: str, index_type: str = "i64") -> Graph:
    start = "0xFF800000" if order == "max" else "0x7F800000"
    return import_mlir(
        function(
            "%a: tensor<3x7xf32>",
            f"(tensor<3xf32>, tensor<3x{index_type}>)",
            f"""
            %v = arith.constant dense<{start}> : tensor<3xf32>
            %i = arith.constant dense<0> : tensor<3x{index_type}>
            %r:2 = linalg.generic {{indexing_maps = [#in, #out, #out],
                iterator_types = ["parallel", "reduction"]}}
                ins(%a : tensor<3x7xf32>) outs(%v, %i : tensor<3xf32>, tensor<3x{index_type}>) {{
            ^bb0(%x: f32, %y: f32, %k: {index_type}):
              %n = linalg.index 1 : index
              %m = arith.index_cast %n : index to {index_type}
              %b = arith.{order}imumf %x, %y : f32
              %c = arith.cmpf {predicate}, %x, %y : f32
              %s = arith.select %c, %m, %k : {index_type}
              linalg.yield %b, %s : f32, {index_type}
            }} -> (tensor<3xf32>, tensor<3x{index_type}>)
            return %r#0, %r#1 : tensor<3xf32>, tensor<3x{index_type}>""",
            "#in = affine_map<(d0, d1) -> (d0, d1)>\n#out = affine_map<(d0, d1) -> (d0)>",
        )
    )


@pytest.mark.parametrize("index_type", ["i64", "i32"])
@pytest.mark.parametrize(("predicate", "order"), [("ogt", "max"), ("olt", "min")])
def test_the_index_of_an_extreme_is_an_arg_combiner(predicate: str, order: str, index_type: str) -> None:
    graph = arg_extreme(predicate, order, index_type)
    a = np.round(floats(3, 7))  # with ties: the first one counts
    value, index = run(graph, a)
    np.testing.assert_array_equal(value, getattr(a, order)(1))
    np.testing.assert_array_equal(index, getattr(a, f"arg{order}")(1))
    assert index.dtype == ("int64" if index_type == "i64" else "int32")


def test_an_unknown_reduction_is_refused() -> None:
    text = function(
        "%a: tensor<3x7xf32>, %o: tensor<3xf32>",
        "tensor<3xf32>",
        """
        %r = linalg.generic {indexing_maps = [#in, #out], iterator_types = ["parallel", "reduction"]}
            ins(%a : tensor<3x7xf32>) outs(%o : tensor<3xf32>) {
        ^bb0(%x: f32, %y: f32):
          %t = arith.mulf %y, %y : f32
          %s = arith.addf %t, %x : f32
          linalg.yield %s : f32
        } -> tensor<3xf32> loc("layers.3 (model.py:17)")
        return %r : tensor<3xf32>""",
        "#in = affine_map<(d0, d1) -> (d0, d1)>\n#out = affine_map<(d0, d1) -> (d0)>",
    )
    with pytest.raises(
        UnsupportedOpError, match=r"linalg\.generic.*layers\.3 \(model\.py:17\).*argmax"
    ) as caught:
        import_mlir(text)
    assert caught.value.location == "layers.3 (model.py:17)"


def test_reads_by_index_become_maps_where_they_are_affine_and_inside() -> None:
    """``a[i, 4 - j]`` is a map; ``a[i, k[j]]`` stays a gather, whose assertion is checked apart."""
    graph = import_mlir(
        function(
            "%a: tensor<3x5xf32>, %k: tensor<5xi64>",
            "tensor<3x5xf32>",
            """
            %e = tensor.empty() : tensor<3x5xf32>
            %c4 = arith.constant 4 : index
            %c5 = arith.constant 5 : index
            %r = linalg.generic {indexing_maps = [#k, #id], iterator_types = ["parallel", "parallel"]}
                ins(%k : tensor<5xi64>) outs(%e : tensor<3x5xf32>) {
            ^bb0(%n: i64, %y: f32):
              %i = linalg.index 0 : index
              %j = linalg.index 1 : index
              %f = arith.subi %c4, %j : index
              %u = tensor.extract %a[%i, %f] : tensor<3x5xf32>
              %m = arith.index_cast %n : i64 to index
              %ok = arith.cmpi slt, %m, %c5 : index
              cf.assert %ok, "index must be smaller than dim size"
              %v = tensor.extract %a[%i, %m] : tensor<3x5xf32>
              %s = arith.addf %u, %v : f32
              linalg.yield %s : f32
            } -> tensor<3x5xf32>
            return %r : tensor<3x5xf32>""",
            "#k = affine_map<(d0, d1) -> (d1)>\n#id = affine_map<(d0, d1) -> (d0, d1)>",
        )
    )
    check, assertion, op = graph.ops
    assert isinstance(check, Generic) and isinstance(assertion, Assert) and isinstance(op, Generic)
    assert sum(m is None for m in op.maps) == 1
    assert "(-1)*d1 + 4" in [str(m.results[-1]) for m in op.maps if m is not None]
    a, k = floats(3, 5), np.array([4, 0, 2, 2, 1])
    np.testing.assert_allclose(run(graph, a, k)[0], a[:, ::-1] + a[:, k], rtol=1e-6)
    with pytest.raises(ModelAssertionError, match="index must be smaller than dim size"):
        run(graph, a, k + 1)


ASSERTING = """
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<2xf32>
    %i = linalg.fill ins(%z : f32) outs(%e : tensor<2xf32>) -> tensor<2xf32>
    %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
        ins(%a : tensor<2x3xf32>) outs(%i : tensor<2xf32>) {
    ^bb0(%x: f32, %o: f32):
      %zero = arith.constant 0.0 : f32
      %above = arith.cmpf ogt, CHECKED, %zero : f32
      %d1 = linalg.index 1 : index
      %c0 = arith.constant 0 : index
      %first = arith.cmpi eq, %d1, %c0 : index
      scf.if %first {
        cf.assert %above, "first numbers must be positive"
      }
      %s = arith.addf %o, %x : f32
      linalg.yield %s : f32
    } -> tensor<2xf32>
    return %r : tensor<2xf32>"""
ROWS = "#id = affine_map<(d0, d1) -> (d0, d1)>\n#row = affine_map<(d0, d1) -> (d0)>"


def test_assertions_of_a_body_hold_at_every_point_where_they_stand() -> None:
    """Those of a reduction too; in a branch, where it is taken."""
    text = function("%a: tensor<2x3xf32>", "tensor<2xf32>", ASSERTING.replace("CHECKED", "%x"), ROWS)
    graph = import_mlir(text)
    a = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
    np.testing.assert_allclose(run(graph, a)[0], a.sum(1))
    with pytest.raises(ModelAssertionError, match="first numbers must be positive"):
        run(graph, -a)


def test_assertions_about_a_running_result_are_refused() -> None:
    text = function("%a: tensor<2x3xf32>", "tensor<2xf32>", ASSERTING.replace("CHECKED", "%o"), ROWS)
    with pytest.raises(UnsupportedOpError, match=r"cf\.assert about the op's running or initial result"):
        import_mlir(text)


def test_assertions_of_tensor_generate_are_checked() -> None:
    graph = import_mlir(
        function(
            "%a: tensor<3xi64>",
            "tensor<3xi64>",
            """
            %r = tensor.generate {
            ^bb0(%i: index):
              %x = tensor.extract %a[%i] : tensor<3xi64>
              %c = arith.constant 7 : i64
              %ok = arith.cmpi slt, %x, %c : i64
              cf.assert %ok, "below 7"
              tensor.yield %x : i64
            } : tensor<3xi64>
            return %r : tensor<3xi64>""",
        )
    )
    a = np.array([1, -2, 6])
    np.testing.assert_array_equal(run(graph, a)[0], a)
    with pytest.raises(ModelAssertionError, match="below 7"):
        run(graph, a + 1)


def test_maps_with_divisions_are_gathers() -> None:
    graph = import_mlir(
        function(
            "%a: tensor<2xf32>, %b: tensor<6xf32>",
            "tensor<6xf32>",
            """
            %r = linalg.generic {indexing_maps = [#div, #id, #id], iterator_types = ["parallel"]}
                ins(%a, %b : tensor<2xf32>, tensor<6xf32>) outs(%b : tensor<6xf32>) {
            ^bb0(%x: f32, %y: f32, %o: f32):
              %s = arith.addf %x, %o : f32
              linalg.yield %s : f32
            } -> tensor<6xf32>
            return %r : tensor<6xf32>""",
            "#div = affine_map<(d0) -> (d0 floordiv 3)>\n#id = affine_map<(d0) -> (d0)>",
        )
    )
    a, b = floats(2), floats(6)
    np.testing.assert_allclose(run(graph, a, b)[0], np.repeat(a, 3) + b, rtol=1e-6)


def test_scf_if_in_a_body_evaluates_both_sides() -> None:
    graph = import_mlir(
        function(
            "%a: tensor<4xf32>",
            "tensor<6xf32>",
            """
            %e = tensor.empty() : tensor<6xf32>
            %c4 = arith.constant 4 : index
            %z = arith.constant 9.0 : f32
            %r = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel"]}
                outs(%e : tensor<6xf32>) {
            ^bb0(%o: f32):
              %i = linalg.index 0 : index
              %c = arith.cmpi slt, %i, %c4 : index
              %s = scf.if %c -> f32 {
                %x = tensor.extract %a[%i] : tensor<4xf32>
                scf.yield %x : f32
              } else {
                scf.yield %z : f32
              }
              linalg.yield %s : f32
            } -> tensor<6xf32>
            return %r : tensor<6xf32>""",
            "#id = affine_map<(d0) -> (d0)>",
        )
    )
    a = floats(4)
    np.testing.assert_array_equal(run(graph, a)[0], [*a, 9, 9])


def test_named_convolutions_and_pooling() -> None:
    graph = import_mlir(
        function(
            "%x: tensor<1x2x7x7xf32>, %w: tensor<3x2x3x3xf32>",
            "(tensor<1x3x3x3xf32>, tensor<1x2x3x3xf32>)",
            """
            %z = arith.constant dense<0.0> : tensor<1x3x3x3xf32>
            %c = linalg.conv_2d_nchw_fchw {strides = dense<2> : tensor<2xi64>,
                dilations = dense<1> : tensor<2xi64>}
                ins(%x, %w : tensor<1x2x7x7xf32>, tensor<3x2x3x3xf32>)
                outs(%z : tensor<1x3x3x3xf32>) -> tensor<1x3x3x3xf32>
            %m = arith.constant dense<0xFF800000> : tensor<1x2x3x3xf32>
            %k = tensor.empty() : tensor<3x3xf32>
            %p = linalg.pooling_nchw_max {strides = dense<2> : tensor<2xi64>,
                dilations = dense<1> : tensor<2xi64>}
                ins(%x, %k : tensor<1x2x7x7xf32>, tensor<3x3xf32>)
                outs(%m : tensor<1x2x3x3xf32>) -> tensor<1x2x3x3xf32>
            return %c, %p : tensor<1x3x3x3xf32>, tensor<1x2x3x3xf32>""",
        )
    )
    assert kinds(graph) == ["generic", "generic"]
    assert all(len(op.inputs) == n for op, n in zip(graph.ops, (2, 1), strict=True))
    x, w = floats(1, 2, 7, 7), floats(3, 2, 3, 3)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    conv, pool = run(graph, x, w)
    np.testing.assert_allclose(conv, np.einsum("nchwij,fcij->nfhw", windows, w), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(pool, windows.max((-1, -2)))
