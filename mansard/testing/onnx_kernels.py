"""The suite's kernels as ONNX models, for adapters of devices that load these (needs onnx)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mansard.hal.program import LIMBS, Program, Tensor

_NUMBERS = tuple(f"p{number}" for number in range(20))
_HALF, _BASE = np.int32(1 << 15), np.int32(1 << 16)


def onnx_kernel(name: str, spin_size: int = 256) -> Program:
    """One of `mansard.testing.KERNELS`, whose extents are parameters, and parameters inputs.

    ``spin_size`` are the rows and columns of the matrices that ``spin`` multiplies: fewer for an emulator.
    """
    if name == "spin":
        return _spin(spin_size)
    return {"fill_index": _fill_index, "add": _add, "wide": _wide}[name]()


def _fill_index() -> Program:
    from onnx import helper

    names, constants = ("n", "a", "b"), {"zero": np.int32(0), "one": np.int32(1)}
    nodes, numbers = _numbers(names)
    nodes += [
        helper.make_node("Range", ["zero", numbers[0], "one"], ["i"]),
        helper.make_node("Mul", ["i", numbers[1]], ["products"]),
        helper.make_node("Add", ["products", numbers[2]], ["out"]),
    ]
    return _program(nodes, (), Tensor("out", "int32", ("n",)), names, constants)


def _add() -> Program:
    from onnx import helper

    a, b, c = (Tensor(name, "float32", ("n",)) for name in "abc")
    model = _model([helper.make_node("Add", ["a", "b"], ["c"])], (a, b), c, (), {})
    return Program(model, (a, b), (c,), ("n",))


def _spin(size: int) -> Program:
    """A number from a chain of products of matrices, which takes about as long as the steps elsewhere.

    The first matrix depends on the parameter, if by nothing that counts: a chain of constants would be
    computed when the model is compiled.
    """
    from onnx import TensorProto, helper

    nodes, (steps,) = _numbers(("n",))
    nodes += [
        helper.make_node("Cast", [steps], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "tiny"], ["nothing"]),
        helper.make_node("Add", ["matrix", "nothing"], ["x0"]),
        *(helper.make_node("MatMul", [f"x{i}", "matrix"], [f"x{i + 1}"]) for i in range(40)),
        helper.make_node("ReduceMax", ["x40"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["rounded"], to=TensorProto.INT32),
        helper.make_node("Add", ["rounded", steps], ["out"]),
    ]
    matrix = np.random.default_rng(0).random((size, size), np.float32) * np.float32(2 / size)
    constants = {"matrix": matrix, "tiny": np.float32(1e-30)}
    return _program(nodes, (), Tensor("out", "int32", ()), ("n",), constants)


def _wide() -> Program:
    """The sum with carries between limbs, which are the words of the result."""
    from onnx import TensorProto, helper

    axes = {"axes": np.array([0], np.int64)}
    nodes = [
        *(helper.make_node("Unsqueeze", [name, "axes"], [f"{name} row"]) for name in _NUMBERS),
        helper.make_node("Concat", [f"{name} row" for name in _NUMBERS], ["rows"], axis=0),
        helper.make_node("ReduceSum", ["rows", "axes"], ["sums"], keepdims=0),
        helper.make_node("Split", ["sums"], [f"sum{n}" for n in range(LIMBS)], axis=0),
    ]
    for n in range(LIMBS):
        total = f"sum{n}"
        if n:
            total = f"total{n}"
            nodes.append(helper.make_node("Add", [f"sum{n}", f"carry{n - 1}"], [total]))
        nodes += [
            helper.make_node("Div", [total, "base"], [f"carry{n}"]),
            helper.make_node("Mul", [f"carry{n}", "base"], [f"above{n}"]),
            helper.make_node("Sub", [total, f"above{n}"], [f"limb{n}"]),
        ]
    nodes += [
        helper.make_node("Concat", [f"limb{n}" for n in range(LIMBS)], ["limbs"], axis=0),
        helper.make_node("Cast", ["limbs"], ["out"], to=TensorProto.UINT16),
    ]
    return _program(nodes, (), Tensor("out", "uint16", (LIMBS,)), _NUMBERS, axes)


def _numbers(names: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Nodes that make i32 numbers of parameters' two lowest limbs, and the names of these numbers."""
    from onnx import helper

    nodes = []
    for name in names:
        nodes += [
            helper.make_node("Gather", [name, "index0"], [f"{name} low"]),
            helper.make_node("Gather", [name, "index1"], [f"{name} high"]),
            helper.make_node("Less", [f"{name} high", "half"], [f"{name} positive"]),
            helper.make_node("Sub", [f"{name} high", "base"], [f"{name} negated"]),
            helper.make_node(
                "Where", [f"{name} {p}" for p in ("positive", "high", "negated")], [f"{name} signed"]
            ),
            helper.make_node("Mul", [f"{name} signed", "base"], [f"{name} upper"]),
            helper.make_node("Add", [f"{name} upper", f"{name} low"], [f"{name} number"]),
        ]
    return nodes, [f"{name} number" for name in names]


def _program(
    nodes: list[Any],
    inputs: tuple[Tensor, ...],
    output: Tensor,
    scalars: tuple[str, ...],
    constants: Mapping[str, Any],
) -> Program:
    model = _model(nodes, inputs, output, scalars, constants)
    return Program(model, inputs, (output,), scalars, scalars)


def _model(
    nodes: list[Any],
    inputs: Sequence[Tensor],
    output: Tensor,
    scalars: Sequence[str],
    constants: Mapping[str, Any],
) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    def described(tensor: Tensor) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
        return helper.make_tensor_value_info(tensor.name, kind, tensor.shape)

    every = {"half": _HALF, "base": _BASE, "index0": np.int64(0), "index1": np.int64(1), **constants}
    read = {name for node in nodes for name in node.input}
    initialisers = [numpy_helper.from_array(np.asarray(every[name]), name) for name in every if name in read]
    limbs = [helper.make_tensor_value_info(name, TensorProto.INT32, [LIMBS]) for name in scalars]
    graph = helper.make_graph(
        nodes, "kernel", [*map(described, inputs), *limbs], [described(output)], initialisers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
