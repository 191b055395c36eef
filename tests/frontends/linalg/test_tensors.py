"""``tensor`` and ``tm_tensor`` ops and constants."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from support.frontends.linalg_text import floats, function, kinds, rng, run

from mansard.frontends.linalg.module import import_mlir
from mansard.ir.graph import Graph
from mansard.ir.ops import Concat, Generic, Pad, Scan, Sort


def unary(
    body: str, source: str, result: str, *inputs: np.ndarray, extra: str = ""
) -> tuple[Graph, np.ndarray]:
    graph = import_mlir(function(f"%a: {source}{extra}", result, f"{body}\nreturn %r : {result}"))
    return graph, run(graph, *inputs)[0]


def test_rank_reduced_slices() -> None:
    a = floats(4, 1, 5, 1)
    body = """%r = tensor.extract_slice %a[1, 0, 1, 0] [1, 1, 2, 1] [1, 1, 2, 1]
        : tensor<4x1x5x1xf32> to tensor<2x1xf32>"""
    _, out = unary(body, "tensor<4x1x5x1xf32>", "tensor<2x1xf32>", a)
    np.testing.assert_array_equal(out, a[1, 0, 1:4:2, :])


INSERTIONS = {
    "into a constant: pad": ("[1, 2] [2, 3] [1, 1]", "tensor<2x3xf32>", True, Pad),
    "whole rows: concat": ("[1, 0] [2, 6] [1, 1]", "tensor<2x6xf32>", False, Concat),
    "a corner: select": ("[1, 2] [2, 3] [1, 1]", "tensor<2x3xf32>", False, Generic),
    "strided: select": ("[0, 1] [2, 3] [2, 2]", "tensor<2x3xf32>", False, Generic),
    "one row of a lower rank": ("[3, 0] [1, 6] [1, 1]", "tensor<6xf32>", False, Concat),
}


@pytest.mark.parametrize("case", INSERTIONS)
def test_insertions(case: str) -> None:
    window, source, constant, expected_kind = INSERTIONS[case]
    target = "%t = arith.constant dense<2.5> : tensor<4x6xf32>" if constant else ""
    name = "%t" if constant else "%b"
    graph = import_mlir(
        function(
            f"%a: {source}, %b: tensor<4x6xf32>",
            "tensor<4x6xf32>",
            f"""{target}
            %r = tensor.insert_slice %a into {name}{window} : {source} into tensor<4x6xf32>
            return %r : tensor<4x6xf32>""",
        )
    )
    assert isinstance(graph.ops[-1], expected_kind)
    shape = [int(d) for d in source[7:-5].split("x")]
    a, b = floats(*shape), floats(4, 6)
    offsets, sizes, strides = ([int(n) for n in part.strip("[]").split(",")] for part in window.split("] ["))
    wanted = np.full((4, 6), 2.5, np.float32) if constant else b.copy()
    index = tuple(slice(o, o + n * s, s) for o, n, s in zip(offsets, sizes, strides, strict=True))
    wanted[index] = a.reshape(sizes)
    np.testing.assert_array_equal(run(graph, a, b)[0], wanted)


def test_an_insertion_at_an_offset_read_when_the_model_runs() -> None:
    graph = import_mlir(
        function(
            "%a: tensor<2x3xf32>, %b: tensor<8x3xf32>, %p: tensor<i64>",
            "(tensor<8x3xf32>, tensor<2x3xf32>)",
            """
            %n = tensor.extract %p[] : tensor<i64>
            %i = arith.index_cast %n : i64 to index
            %r = tensor.insert_slice %a into %b[%i, 0] [2, 3] [1, 1] : tensor<2x3xf32> into tensor<8x3xf32>
            %s = tensor.extract_slice %b[%i, 0] [2, 3] [1, 1] : tensor<8x3xf32> to tensor<2x3xf32>
            return %r, %s : tensor<8x3xf32>, tensor<2x3xf32>""",
        )
    )
    a, b = floats(2, 3), floats(8, 3)
    for p in (0, 3, 6):
        written, read = run(graph, a, b, np.array(p))
        wanted = b.copy()
        wanted[p : p + 2] = a
        np.testing.assert_array_equal(written, wanted)
        np.testing.assert_array_equal(read, b[p : p + 2])


def test_padding_and_cropping() -> None:
    a = floats(3, 4)
    body = """
    %v = arith.constant 1.5 : f32
    %r = tensor.pad %a low[1, -1] high[0, 2] {
    ^bb0(%i: index, %j: index):
      tensor.yield %v : f32
    } : tensor<3x4xf32> to tensor<4x5xf32>"""
    _, out = unary(body, "tensor<3x4xf32>", "tensor<4x5xf32>", a)
    np.testing.assert_array_equal(out, np.pad(a[:, 1:], ((1, 0), (0, 2)), constant_values=1.5))


def test_padding_with_an_index() -> None:
    a = floats(3)
    body = """
    %r = tensor.pad %a low[1] high[2] {
    ^bb0(%i: index):
      %n = arith.index_cast %i : index to i64
      %f = arith.sitofp %n : i64 to f32
      tensor.yield %f : f32
    } : tensor<3xf32> to tensor<6xf32>"""
    _, out = unary(body, "tensor<3xf32>", "tensor<6xf32>", a)
    np.testing.assert_array_equal(out, [0, *a, 4, 5])


def test_small_tensors_of_scalars() -> None:
    graph = import_mlir(
        function(
            "%a: tensor<?x3xf32>",
            "(tensor<2xi64>, tensor<2x2xf32>, tensor<4xindex>)",
            """
            %c0 = arith.constant 0 : index
            %d = tensor.dim %a, %c0 : tensor<?x3xf32>
            %n = arith.index_cast %d : index to i64
            %k = arith.constant 7 : i64
            %r = tensor.from_elements %n, %k : tensor<2xi64>
            %x = tensor.extract %a[%c0, %c0] : tensor<?x3xf32>
            %y = arith.constant 0.25 : f32
            %s = tensor.from_elements %x, %y, %y, %x : tensor<2x2xf32>
            %g = tensor.generate {
            ^bb0(%i: index):
              %t = arith.addi %i, %d : index
              tensor.yield %t : index
            } : tensor<4xindex>
            return %r, %s, %g : tensor<2xi64>, tensor<2x2xf32>, tensor<4xindex>""",
        )
    )
    a = floats(5, 3)
    sizes, square, generated = run(graph, a)
    np.testing.assert_array_equal(sizes, [5, 7])
    np.testing.assert_array_equal(square, np.array([[a[0, 0], 0.25], [0.25, a[0, 0]]], np.float32))
    np.testing.assert_array_equal(generated, [5, 6, 7, 8])


def test_reshapes_of_dynamic_tensors() -> None:
    graph = import_mlir(
        function(
            "%a: tensor<?x6xf32>",
            "(tensor<?x2x3xf32>, tensor<?xf32>, tensor<3x?xf32>)",
            """
            %c0 = arith.constant 0 : index
            %c2 = arith.constant 2 : index
            %c3 = arith.constant 3 : index
            %d = tensor.dim %a, %c0 : tensor<?x6xf32>
            %e = tensor.expand_shape %a [[0], [1, 2]] output_shape [%d, 2, 3]
                : tensor<?x6xf32> into tensor<?x2x3xf32>
            %f = tensor.collapse_shape %e [[0, 1, 2]] : tensor<?x2x3xf32> into tensor<?xf32>
            %n = arith.muli %d, %c2 : index
            %s = tensor.from_elements %c3, %n : tensor<2xindex>
            %g = tensor.reshape %f(%s) : (tensor<?xf32>, tensor<2xindex>) -> tensor<3x?xf32>
            return %e, %f, %g : tensor<?x2x3xf32>, tensor<?xf32>, tensor<3x?xf32>""",
        )
    )
    a = floats(4, 6)
    for out, shape in zip(run(graph, a), [(4, 2, 3), (24,), (3, 8)], strict=True):
        np.testing.assert_array_equal(out, a.reshape(shape))
    assert set(kinds(graph)) == {"reshape"}


# Constants --------------------------------------------------------------------------------------
CONSTANTS = {
    "f32": ("dense<[1.5, -2.0]> : tensor<2xf32>", np.array([1.5, -2], np.float32)),
    "f16": ("dense<[1.5, -2.0]> : tensor<2xf16>", np.array([1.5, -2], np.float16)),
    "bf16": ("dense<[1.5, -2.0]> : tensor<2xbf16>", np.array([1.5, -2], ml_dtypes.bfloat16)),
    "bf16 infinity": ("dense<[0x7F80, 1.0]> : tensor<2xbf16>", np.array([np.inf, 1], ml_dtypes.bfloat16)),
    "bf16 splat": ("dense<1.5> : tensor<2xbf16>", np.array([1.5, 1.5], ml_dtypes.bfloat16)),
    "f8": ("dense<[1.5, -2.0]> : tensor<2xf8E4M3FN>", np.array([1.5, -2], ml_dtypes.float8_e4m3fn)),
    "i1": ("dense<[true, false]> : tensor<2xi1>", np.array([True, False])),
    "i8": ("dense<[-1, 127]> : tensor<2xi8>", np.array([-1, 127], np.int8)),
    "i4": ("dense<[-8, 7]> : tensor<2xi4>", np.array([-8, 7], ml_dtypes.int4)),
    "i64": ("dense<[-1, 9]> : tensor<2xi64>", np.array([-1, 9])),
    "matrix": (
        "dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>",
        np.arange(1, 7, dtype=np.int32).reshape(2, 3),
    ),
    "resource": ("dense_resource<blob> : tensor<2xf32>", np.array([1, 2], np.float32)),
    "empty": ("dense<> : tensor<0x3xf32>", np.zeros((0, 3), np.float32)),
}


@pytest.mark.parametrize("case", CONSTANTS)
def test_constants(case: str) -> None:
    literal, wanted = CONSTANTS[case]
    kind = literal.split(" : ")[1]
    text = function("", kind, f"%r = arith.constant {literal}\nreturn %r : {kind}")
    text += '\n{-# dialect_resources: { builtin: { blob: "0x040000000000803F00000040" } } #-}'
    (out,) = run(import_mlir(text))
    assert out.dtype == wanted.dtype
    np.testing.assert_array_equal(out, wanted)


# tm_tensor --------------------------------------------------------------------------------------
def test_scan() -> None:
    body = """
    %z = arith.constant dense<0> : tensor<2x5xi64>
    %s = arith.constant dense<0> : tensor<2xi64>
    %r, %q = tm_tensor.scan dimension(1) inclusive(INCLUSIVE) ins(%a : tensor<2x5xi64>)
        outs(%z, %s : tensor<2x5xi64>, tensor<2xi64>) {
    ^bb0(%x: i64, %y: i64):
      %t = arith.addi %x, %y : i64
      tm_tensor.yield %t : i64
    } -> tensor<2x5xi64>, tensor<2xi64>"""
    a = rng.integers(-9, 9, (2, 5))
    for inclusive in (True, False):
        text = body.replace("INCLUSIVE", str(inclusive).lower())
        graph, out = unary(text, "tensor<2x5xi64>", "tensor<2x5xi64>", a)
        assert isinstance(graph.ops[0], Scan)
        np.testing.assert_array_equal(out, np.cumsum(a, 1) - (0 if inclusive else a))


@pytest.mark.parametrize(("predicate", "descending"), [("oge", True), ("olt", False), ("ule", False)])
def test_sort_carries_other_operands_along(predicate: str, descending: bool) -> None:
    graph = import_mlir(
        function(
            "%a: tensor<6xf32>, %b: tensor<6xf32>",
            "(tensor<6xf32>, tensor<6xf32>)",
            f"""
            %r:2 = tm_tensor.sort dimension(0) outs(%a, %b : tensor<6xf32>, tensor<6xf32>) {{
            ^bb0(%x: f32, %y: f32, %u: f32, %v: f32):
              %c = arith.cmpf {predicate}, %x, %y : f32
              tm_tensor.yield %c : i1
            }} -> tensor<6xf32>, tensor<6xf32>
            return %r#0, %r#1 : tensor<6xf32>, tensor<6xf32>""",
        )
    )
    assert [op.descending for op in graph.ops if isinstance(op, Sort)] == [descending]
    a, b = floats(6), floats(6)
    order = np.argsort(-a if descending else a)
    values, carried = run(graph, a, b)
    np.testing.assert_array_equal(values, a[order])
    np.testing.assert_array_equal(carried, b[order])
