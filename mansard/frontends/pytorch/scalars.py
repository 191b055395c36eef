"""Numbers read from tensors (``Tensor.item``) or computed from sizes, as tensors of rank 0.

An exported program computes with such numbers in Python's operators, over int64, float64 and bool.
Assertions, outputs, operators that torch-mlir lacks, and operands of which it takes no numbers need them as
tensors.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from mansard.errors import UnsupportedOpError
from mansard.frontends.pytorch.inserter import Inserter
from mansard.frontends.pytorch.locations import location_of

aten = torch.ops.aten
Number = bool | int | float
_TYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}
_ITEM = (aten._local_scalar_dense.default, aten.item.default)
_SIZES = ("sym_size", "sym_numel")
_LAYOUT = ("sym_stride", "sym_storage_offset")
"""What torch asserts of views of a tensor's memory; an imported model has none."""
_COMPARE: dict[Any, Any] = {
    operator.eq: aten.eq.Tensor, operator.ne: aten.ne.Tensor, operator.lt: aten.lt.Tensor,
    operator.le: aten.le.Tensor, operator.gt: aten.gt.Tensor, operator.ge: aten.ge.Tensor,
}  # fmt: skip
_ARITHMETIC: dict[Any, Any] = {
    operator.add: aten.add.Tensor, operator.sub: aten.sub.Tensor, operator.mul: aten.mul.Tensor,
    operator.floordiv: aten.floor_divide.default, operator.mod: aten.remainder.Tensor,
    torch.sym_max: aten.maximum.default, torch.sym_min: aten.minimum.default,
    max: aten.maximum.default, min: aten.minimum.default,
}  # fmt: skip
_LOGIC: dict[Any, Any] = {
    operator.and_: aten.logical_and.default, operator.or_: aten.logical_or.default,
    operator.xor: aten.logical_xor.default,
}  # fmt: skip
_WHOLE: dict[Any, Any] = {
    math.trunc: aten.trunc.default, math.floor: aten.floor.default, math.ceil: aten.ceil.default,
    torch.sym_int: aten.trunc.default, round: aten.round.default,
}  # fmt: skip
_LOWERED = (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, torch.sym_float)
"""Operators on numbers that torch-mlir lowers itself."""


def is_number(node: Any) -> bool:
    """Whether a node's result is a number, not a tensor: a known one, or one of torch's symbolic types."""
    value = node.meta.get("val")
    return isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def depends_on_layout(node: Any) -> bool:
    """Whether a number follows from a stride or an offset in memory."""
    if _packet(node) in _LAYOUT:
        return True
    return _is_operator(node) and any(map(depends_on_layout, node.all_input_nodes))


def _packet(node: Any) -> str:
    return str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))


def compute_in_tensors(graph: torch.fx.Graph) -> None:
    """Compute numbers that depend on tensors, where torch-mlir cannot, in tensors of rank 0."""
    _number_operands(graph)
    tensors = ScalarTensors(graph)
    foreign: set[Any] = set()
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if not _is_operator(node) or not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            continue
        if node.target in _LOWERED and not foreign.intersection(node.all_input_nodes):
            continue
        foreign.add(node)
        if free_unbacked_symbols(value) and not all(map(_is_operator, node.users)):
            tensor = tensors.of(node)
            tensor.meta["tensor_meta"] = _extract_tensor_metadata(tensor.meta["val"])
            with graph.inserting_after(tensor):
                item = graph.call_function(_ITEM[0], (tensor,))
            item.meta = {**node.meta, "val": value}
            node.replace_all_uses_with(item)
    graph.eliminate_dead_code()


_WITH_NUMBERS = frozenset({"add", "sub", "mul", "div", "pow", "eq", "ne", "lt", "le", "gt", "ge"})


def _number_operands(graph: torch.fx.Graph) -> None:
    """Operands of arithmetic that torch-mlir takes as tensors only: floats computed from sizes, and sizes
    that a tensor is subtracted from. Floats are computed in f32 unless the result is f64: the quotient of two
    sizes is then what PyTorch's kernels compute."""
    narrow, wide = ScalarTensors(graph, torch.float32), ScalarTensors(graph)
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if _packet(node) not in _WITH_NUMBERS or not isinstance(value, torch.Tensor):
            continue
        operands = list(node.args[:2])
        tensors = [a.meta["val"] for a in operands if isinstance(a, torch.fx.Node)]
        dtypes = [t.dtype for t in tensors if isinstance(t, torch.Tensor)]
        dtype = next((t for t in dtypes if t.is_floating_point), value.dtype)
        for place, operand in enumerate(operands):
            if not _is_symbolic(operand) or free_unbacked_symbols(operand.meta["val"]):
                continue
            if place and not isinstance(operand.meta["val"], torch.SymFloat):
                continue
            tensor = (wide if dtype is torch.float64 else narrow).of(operand)
            if dtype.is_floating_point and tensor.meta["val"].dtype is not dtype:
                with graph.inserting_after(tensor):
                    tensor = _converted(Inserter(graph, operand), tensor, dtype)
            node.update_arg(place, tensor)
            if node.target._overloadname == "Scalar":
                node.target = node.target.overloadpacket.Tensor


def _is_symbolic(operand: Any) -> bool:
    """Whether an operand is a number computed from sizes."""
    value = operand.meta.get("val") if isinstance(operand, torch.fx.Node) else None
    return isinstance(value, (torch.SymInt, torch.SymFloat))


def _is_operator(node: Any) -> bool:
    """Whether a node is a call of Python's, on numbers."""
    return node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload)


class ScalarTensors:
    """Makes tensors of rank 0 of the numbers of one graph, each once; floats are computed in ``floating``."""

    def __init__(self, graph: torch.fx.Graph, floating: torch.dtype = torch.float64) -> None:
        self.graph, self.floating = graph, floating
        self._made: dict[Any, Any] = {}

    def of(self, number: Any) -> Any:
        """The node of a rank-0 tensor that holds the number of a node: int64, float64 or bool."""
        node = self._raw(number)
        dtype = node.meta["val"].dtype
        with self.graph.inserting_after(node):
            return _converted(Inserter(self.graph, number), node, self._wide(dtype))

    def _wide(self, dtype: torch.dtype) -> torch.dtype:
        """The type in which Python computes with numbers of a tensor's type."""
        if dtype is torch.bool:
            return dtype
        return self.floating if dtype.is_floating_point else torch.int64

    def _raw(self, number: Any) -> Any:
        """As `of`, but what was read from a float tensor stays in its type."""
        if number not in self._made:
            with self.graph.inserting_before(number.next):
                self._made[number] = self._tensor(Inserter(self.graph, number), number)
        return self._made[number]

    def _tensor(self, into: Inserter, node: Any) -> Any:
        target = node.target
        if target in _ITEM:
            return into.call(aten.reshape.default, node.args[0], [])
        if _packet(node) in _SIZES:
            return into.call(aten.full.default, [], node, dtype=torch.int64)
        args = [self._raw(a) if isinstance(a, torch.fx.Node) else a for a in node.args]
        result = _apply(into, target, args, self.floating)
        if result is None:
            name = getattr(target, "__name__", str(target))
            raise UnsupportedOpError(
                name, location_of(node), "an operator on numbers read from tensors that has no tensor form"
            )
        return result


def _apply(into: Inserter, target: Any, args: list[Any], floating: torch.dtype) -> Any:
    """The operator on tensors of rank 0 and Python's numbers; None for one without a tensor form."""
    if target in _COMPARE:
        return into.call(_COMPARE[target], *_comparable(into, args, floating))
    if target in _ARITHMETIC:
        return into.call(_ARITHMETIC[target], *_same_type(into, args, floating))
    if target in _LOGIC:
        return into.call(_LOGIC[target], *(_as(into, a, torch.bool) for a in args))
    if target in (operator.not_, torch.sym_not):
        return into.call(aten.logical_not.default, _as(into, args[0], torch.bool))
    if target is torch.sym_ite:
        return into.call(
            aten.where.self, _as(into, args[0], torch.bool), *_same_type(into, args[1:], floating)
        )
    if target is operator.truediv:
        return into.call(aten.div.Tensor, *(_as(into, a, floating) for a in args))
    return _apply_function(into, target, args, floating)


def _apply_function(into: Inserter, target: Any, args: list[Any], floating: torch.dtype) -> Any:
    if target in (operator.neg, operator.abs, abs):
        op = aten.neg.default if target is operator.neg else aten.abs.default
        return into.call(op, *_same_type(into, args, floating))
    if target is torch.sym_float:
        return _as(into, args[0], floating)
    if target in _WHOLE and len(args) == 1:
        return _as(into, into.call(_WHOLE[target], _as(into, args[0], floating)), torch.int64)
    if target in (torch._sym_sqrt, math.sqrt):
        return into.call(aten.sqrt.default, _as(into, args[0], floating))
    if target in (operator.pow, pow):
        base, exponent = (_as(into, a, floating) for a in args)
        power = into.call(aten.pow.Tensor_Tensor, base, exponent)
        whole = not any(_dtype(a).is_floating_point for a in args)
        return _as(into, power, torch.int64) if whole else power
    return None


def _dtype(operand: Any) -> torch.dtype:
    is_node = isinstance(operand, torch.fx.Node)
    dtype: torch.dtype = operand.meta["val"].dtype if is_node else _TYPES[type(operand)]
    return dtype


def _as(into: Inserter, operand: Any, dtype: torch.dtype) -> Any:
    if not isinstance(operand, torch.fx.Node):
        return into.call(aten.full.default, [], operand, dtype=dtype)
    return _converted(into, operand, dtype)


def _converted(into: Inserter, node: Any, dtype: torch.dtype) -> Any:
    if node.meta["val"].dtype is dtype:
        return node
    return into.call(torch.ops.prims.convert_element_type.default, node, dtype)


def _same_type(into: Inserter, args: list[Any], floating: torch.dtype) -> list[Any]:
    floats = any(_dtype(a).is_floating_point for a in args)
    return [_as(into, a, floating if floats else torch.int64) for a in args]


def _comparable(into: Inserter, args: list[Any], floating: torch.dtype) -> list[Any]:
    """Operands of a comparison: in f32 where that is exact, which every device computes."""
    if all(_fits_f32(a) for a in args) and any(isinstance(a, torch.fx.Node) for a in args):
        return [_as(into, a, torch.float32) for a in args]
    return _same_type(into, args, floating)


def _fits_f32(operand: Any) -> bool:
    if isinstance(operand, torch.fx.Node):
        return _dtype(operand) in (torch.float32, torch.float16, torch.bfloat16)
    return math.isnan(operand) or float(np.float32(operand)) == operand
