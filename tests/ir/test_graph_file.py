"""Graphs in files: text, and weights beside it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from support.graphs import F32, matmul, unary

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import CompileError, GraphSyntaxError, ImportModelError
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap
from mansard.ir.graph_file import read_graph, weights_file, write_graph
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Arg


def constant_graph(dtype: DType, shape: tuple[int, ...]) -> tuple[Graph, np.ndarray]:
    values = np.random.default_rng(0).integers(0, 8, shape)
    data = (values - 4 if dtype.is_signed else values).astype(dtype.numpy)
    b = GraphBuilder()
    w = b.constant("w", Constant.of(data, "layer.w"), shape, dtype)
    body = Arg(0, dtype)
    return b.build([b.generic([w], [IndexMap.identity(len(shape))], shape, body)]), data


@pytest.mark.parametrize("dtype", list(DType), ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (4,), (), (0, 2)])
def test_constants_of_every_type_come_back(tmp_path: Path, dtype: DType, shape: tuple[int, ...]) -> None:
    graph, data = constant_graph(dtype, shape)
    path = tmp_path / "g.mir"
    assert write_graph(graph, path, weights=True) == tmp_path / "g.safetensors"
    again = read_graph(path)
    assert str(again) == str(graph)
    (constant,) = again.constants.values()
    loaded = constant.load()
    assert loaded.dtype == data.dtype
    np.testing.assert_array_equal(loaded, data)


def model() -> tuple[Graph, np.ndarray]:
    """Two constants with one key, as a reshape leaves them, and a state with initial contents."""
    b = GraphBuilder("model")
    rows = dims.symbol(Dim("n", 1, 8))
    x = b.input("x", (rows, 4), F32)
    data = np.arange(12, dtype=np.float32)
    w = b.constant("w", Constant.of(data.reshape(4, 3), "layer.w"), (4, 3), F32)
    v = b.constant("w_1", Constant.of(data.reshape(3, 4) + 1, "layer.w"), (3, 4), F32)
    before = b.state("count", (2,), F32, Constant.of(np.ones(2, np.float32), "count"))
    b.update_state(before, unary(b, "neg", before))
    y = matmul(b, matmul(b, x, w), v)
    return b.build([y]), np.ones((2, 4), np.float32)


def test_constants_with_one_key_and_states_keep_their_data(tmp_path: Path) -> None:
    graph, x = model()
    write_graph(graph, tmp_path / "g.mir", weights=True)
    again = read_graph(tmp_path / "g.mir")
    np.testing.assert_array_equal(interpret(again, [x])[0], interpret(graph, [x])[0])
    (state,) = again.states
    assert state.initial is not None
    np.testing.assert_array_equal(state.initial.load(), [1, 1])


def safetensors(path: Path, **tensors: np.ndarray) -> Path:
    """A file as other programs write it: back to back, without padding."""
    names = {"float32": "F32", "float64": "F64"}
    table, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        end = len(data) + array.nbytes
        row = {"dtype": names[array.dtype.name], "shape": array.shape, "data_offsets": [len(data), end]}
        table[name.replace("__", ".")] = row
        data += array.tobytes()
    header = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def test_weights_of_another_program_are_found_by_key(tmp_path: Path) -> None:
    graph, data = constant_graph(DType.F32, (3, 5))
    write_graph(graph, tmp_path / "g.mir")
    # Flat, as the source of a reshaped constant may be; behind something of odd size.
    other = safetensors(
        tmp_path / "model.safetensors", odd=np.zeros(1, np.float32), layer__w=data.reshape(-1)
    )
    again = read_graph(tmp_path / "g.mir", other)
    np.testing.assert_array_equal(interpret(again, [])[0], data)


def test_constants_without_data_are_named(tmp_path: Path) -> None:
    graph, _ = model()
    path = tmp_path / "g.mir"
    assert write_graph(graph, path) is None
    with pytest.raises(
        ImportModelError, match=r'no weights file: %w "layer.w", %w_1 "layer.w", %count.*--weights'
    ):
        read_graph(path)
    other = safetensors(tmp_path / "o.safetensors", w=np.zeros((4, 3), np.float32))
    with pytest.raises(ImportModelError, match=r'no data in .*o.safetensors: %w_1 "layer.w"'):
        read_graph(path, other)


@pytest.mark.parametrize("array", [np.zeros((3, 5)), np.zeros((3, 4), np.float32)])
def test_weights_of_another_type_or_size_are_an_error(tmp_path: Path, array: np.ndarray) -> None:
    graph, _ = constant_graph(DType.F32, (3, 5))
    write_graph(graph, tmp_path / "g.mir")
    other = safetensors(tmp_path / "o.safetensors", w=array)
    with pytest.raises(ImportModelError, match=r"holds F\d\d\[3, \d\] for constant %w, which is F32\[3, 5\]"):
        read_graph(tmp_path / "g.mir", other)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty, not a safetensors file"),
        (b"short", "truncated: 5 bytes are no whole header"),
        (struct.pack("<Q", 1 << 60), "not a safetensors file: its header would have"),
        (struct.pack("<Q", 2) + b"[]", "not a safetensors file: its header is no JSON object"),
        (
            struct.pack("<Q", 60) + b'{"w":{"dtype":"F32","shape":[15],"data_offsets":[0,60]}}    ',
            "truncated: tensor 'w' ends at byte 128",
        ),
    ],
)
def test_a_weights_file_that_is_none_is_an_error(tmp_path: Path, data: bytes, message: str) -> None:
    graph, _ = constant_graph(DType.F32, (3, 5))
    path = tmp_path / "g.mir"
    write_graph(graph, path)
    weights_file(path).write_bytes(data)
    with pytest.raises(ImportModelError, match=rf"g\.safetensors is {message}"):
        read_graph(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match="cannot read"):
        read_graph(tmp_path / "none.mir")
    (tmp_path / "g.mir").write_text("graph main\n  input %x: 4xf32\n  return %z\n")
    with pytest.raises(GraphSyntaxError, match="line 3, column 10"):
        read_graph(tmp_path / "g.mir")


def test_a_constant_with_a_symbolic_dim_cannot_be_written(tmp_path: Path) -> None:
    b = GraphBuilder()
    rows = dims.symbol(Dim("n", 1, 8))
    b.input("x", (rows,), F32)
    w = b.constant("w", Constant.of(np.zeros(3, np.float32)), (rows,), F32)
    graph = b.build([unary(b, "neg", w)])
    with pytest.raises(CompileError, match="constant %w has a symbolic dim"):
        write_graph(graph, tmp_path / "g.mir", weights=True)
