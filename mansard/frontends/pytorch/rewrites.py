"""Graph rewrites that work around torch-mlir's limits where a decomposition cannot."""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from mansard.errors import UnsupportedOpError
from mansard.frontends.pytorch.degenerate import simplify_degenerate
from mansard.frontends.pytorch.inserter import Inserter
from mansard.frontends.pytorch.locations import location_of
from mansard.frontends.pytorch.supported_ops import SUPPORTED

aten = torch.ops.aten
_BYTES = (torch.uint8, torch.int8)
_MOVES = frozenset({
    "view", "reshape", "permute", "transpose", "t", "expand", "slice", "select", "cat", "stack", "unsqueeze",
    "squeeze", "clone", "alias", "detach", "index", "gather", "index_select", "embedding", "flip", "repeat",
    "split", "split_with_sizes", "unbind", "where", "convert_element_type", "_to_copy", "copy", "scatter",
    "index_put", "_unsafe_index_put", "_unsafe_view", "as_strided", "constant_pad_nd", "lift_fresh_copy",
    "sym_size", "full_like", "zeros_like", "ones_like", "empty_like", "slice_scatter", "select_scatter",
    "view_copy", "expand_copy", "permute_copy", "unfold",
})  # fmt: skip
"""Ops that only move elements: the signedness of their type does not matter."""


_ORDERS = frozenset({"sort", "topk", "kthvalue", "amax", "amin", "max", "min"})
"""Ops that compare elements of bool, too: torch-mlir's order of one bit is that of 0 and -1."""
_SCATTERS = frozenset({"scatter", "scatter_add", "scatter_reduce"})
_CONVERSIONS = frozenset({"convert_element_type", "_to_copy"})
_VIEWS = frozenset({"view", "_unsafe_view", "reshape", "view_copy"})


def rewrite(graph: torch.fx.Graph) -> None:
    """Apply every rewrite in place.

    Raises UnsupportedOpError for unsupported features: random and complex numbers, and shapes that depend on
    the content of a tensor.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        _reject(node)
        if _packet(node.target) in _SCATTERS:
            _count_from_first_dim(node)
        elif _packet(node.target) == "topk":
            _in_order(node)
        if simplify_degenerate(graph, node):
            pass
        elif node.target is aten.scaled_dot_product_attention.default:
            _attention_rank(graph, node)
        elif _packet(node.target) in _VIEWS:
            _view_by_groups(graph, node)
        elif _packet(node.target) in _CONVERSIONS and _to_unsigned(node):
            _convert_by_integers(graph, node)
        elif _packet(node.target) in _CONVERSIONS and _value(node).dtype is torch.float8_e4m3fn:
            _saturate(graph, node)
        elif _packet(node.target) not in _MOVES and any(_is_widened(node, x) for x in node.all_input_nodes):
            _widen_bytes(graph, node)


def _reject(node: Any) -> None:
    reason = ""
    values = torch.utils._pytree.tree_leaves(_value(node))
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    attention = node.target is aten.scaled_dot_product_attention.default
    dropout = [*node.args[4:5], node.kwargs.get("dropout_p", 0.0)][0] if attention else 1.0
    if torch.Tag.nondeterministic_seeded in node.target.tags and dropout > 0:
        reason = "random numbers are not supported; pass them as an input"
    elif any(v.is_complex() for v in tensors):
        reason = "complex numbers are not supported"
    elif any(free_unbacked_symbols(v.shape) for v in tensors):
        reason = "a shape that depends on the content of a tensor is not supported"
    if reason:
        raise UnsupportedOpError(
            str(node.target).removesuffix(".default"), location_of(node), f"{reason}; {SUPPORTED}"
        )


def _packet(target: Any) -> str:
    return str(target.overloadpacket.__name__)


def _value(node: Any) -> Any:
    return node.meta.get("val")


def _is_byte(node: Any) -> bool:
    value = _value(node)
    return isinstance(value, torch.Tensor) and value.dtype in _BYTES


def _is_widened(node: Any, source: Any) -> bool:
    """Whether an op computes on an operand in 32 bits."""
    ordered = _packet(node.target) in _ORDERS and _value(source).dtype is torch.bool
    return ordered or _is_byte(source)


def _to_unsigned(node: Any) -> bool:
    """Whether floats become uint8."""
    value, source = _value(node), _value(node.all_input_nodes[0])
    return bool(value.dtype is torch.uint8 and source.dtype.is_floating_point)


def _convert_by_integers(graph: torch.fx.Graph, node: Any) -> None:
    """From floats to uint8 through int32: torch-mlir converts to signed bytes, whose maximum is 127."""
    with graph.inserting_before(node):
        convert = torch.ops.prims.convert_element_type.default
        whole = Inserter(graph, node).call(convert, node.all_input_nodes[0], torch.int32)
    node.replace_input_with(node.all_input_nodes[0], whole)


def _saturate(graph: torch.fx.Graph, node: Any) -> None:
    """Clamp what becomes float8_e4m3fn, as PyTorch does: MLIR makes NaN of what the type cannot hold."""
    top = torch.finfo(torch.float8_e4m3fn).max
    (source,) = node.all_input_nodes
    with graph.inserting_before(node):
        inserter = Inserter(graph, node)
        clamped = source
        if not _value(source).dtype.is_floating_point:
            convert = torch.ops.prims.convert_element_type.default
            clamped = inserter.call(convert, clamped, torch.float32)
        for bound, beyond in ((-top, aten.lt.Tensor), (top, aten.gt.Tensor)):
            limit = inserter.call(aten.full_like.default, clamped, bound)
            mask = inserter.call(beyond, clamped, limit)
            clamped = inserter.call(aten.where.self, mask, limit, clamped)
    node.replace_input_with(source, clamped)


def _widen_bytes(graph: torch.fx.Graph, node: Any) -> None:
    """Compute on 8-bit integers in 32 bits.

    torch-mlir sign-extends uint8 in comparisons, orders and sums, and crashes on an 8-bit tensor with a
    Python number. A result of 8 bits wraps as before.
    """
    value = _value(node)
    wide: dict[Any, Any] = {}
    with graph.inserting_before(node):
        inserter = Inserter(graph, node)
        for source in node.all_input_nodes:
            if _is_widened(node, source):
                wide[source] = inserter.call(
                    torch.ops.prims.convert_element_type.default, source, torch.int32
                )
        args = torch.fx.node.map_arg(node.args, lambda n: wide.get(n, n))
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: wide.get(n, n))
        kwargs = {k: torch.int32 if v in _BYTES else v for k, v in kwargs.items()}
        result = inserter.call(node.target, *args, **kwargs)
        if isinstance(value, torch.Tensor):
            result = _of_type(inserter, result, value.dtype)
        else:
            for user in list(node.users):  # the items of several results
                item = inserter.call(operator.getitem, result, user.args[1])
                user.replace_all_uses_with(_of_type(inserter, item, _value(user).dtype))
                graph.erase_node(user)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _of_type(inserter: Inserter, x: Any, dtype: torch.dtype) -> Any:
    if _value(x).dtype is dtype:
        return x
    return inserter.call(torch.ops.prims.convert_element_type.default, x, dtype)


def _in_order(node: Any) -> None:
    """The largest elements in any order may be in theirs, the only one that torch-mlir lowers."""
    x, count, *options = node.args
    if len(options) == 3:
        node.args = (x, count, *options[:2], True)
    if "sorted" in node.kwargs:
        node.kwargs = {**node.kwargs, "sorted": True}


def _count_from_first_dim(node: Any) -> None:
    """A dim that is counted from the last one crashes torch-mlir's lowering of scatters."""
    x, dim, *rest = node.args
    if dim < 0:
        node.args = (x, dim + max(1, _value(x).dim()), *rest)


def _attention_rank(graph: torch.fx.Graph, node: Any) -> None:
    """Reshape attention's operands to (batch, heads, length, depth): torch-mlir supports masks for no other
    rank."""
    names = ("query", "key", "value", "attn_mask")
    given = {
        **dict(zip(names, node.args, strict=False)),
        **{k: v for k, v in node.kwargs.items() if k in names},
    }
    rank = _value(node).dim()
    mask = given.get("attn_mask")
    if rank > 4 or (rank == 4 and (mask is None or _value(mask).dim() == 4)):
        return
    with graph.inserting_before(node):
        inserter = Inserter(graph, node)
        raised = {name: _raised(inserter, x) for name, x in given.items() if x is not None}
        rest = {k: v for k, v in node.kwargs.items() if k not in names}
        rest |= dict(zip(("dropout_p", "is_causal"), node.args[4:], strict=False))
        operands = [raised.get(name) for name in names]
        result = inserter.call(node.target, *operands, **rest)
        for _ in range(4 - rank):
            result = inserter.call(aten.squeeze.dim, result, 0)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _raised(inserter: Inserter, x: Any) -> Any:
    while _value(x).dim() < 4:
        x = inserter.call(aten.unsqueeze.default, x, 0)
    return x


def _view_by_groups(graph: torch.fx.Graph, node: Any) -> None:
    """Replace a view by explicit merges and splits of dims where sizes are dynamic.

    torch-mlir infers them from the known sizes: it takes ``(b, s, 384) -> (b*s, 384)`` as keeping ``b``, with
    ``s`` equal to 1.
    """
    source, sizes = node.args[0], node.args[1]
    groups = _groups(_value(source).shape, _value(node).shape)
    if groups is None or all(len(group) <= 1 for pair in groups for group in pair):
        return
    if sum(not isinstance(d, int) for d in (*_value(source).shape, *_value(node).shape)) < 3:
        return  # with a single unknown size there is no ambiguity
    with graph.inserting_before(node):
        inserter = Inserter(graph, node)
        result, position = source, 0
        for merged, split in groups:
            if len(merged) > 1:
                last = position + len(merged) - 1
                result = inserter.call(aten.flatten.using_ints, result, position, last)
            if len(split) > 1:
                result = inserter.call(aten.unflatten.int, result, position, [sizes[i] for i in split])
            position += max(1, len(split))
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _groups(before: Any, after: Any) -> list[tuple[list[int], list[int]]] | None:
    """Runs of dims of two shapes with equal products, left to right; None when there is no such pairing.

    Every run has at least one dim on each side.
    """
    left, right = ([_expression(d) for d in shape] for shape in (before, after))
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        merged, split = [i], [j]
        a, b = left[i], right[j]
        i, j = i + 1, j + 1
        while a != b:
            if i < len(left) and (j >= len(right) or sympy.denom(sympy.cancel(b / a)) == 1):
                a, i = a * left[i], i + 1
                merged.append(i - 1)
            elif j < len(right):
                b, j = b * right[j], j + 1
                split.append(j - 1)
            else:
                return None
        groups.append((merged, split))
    # The remaining dims have size 1: they join the last run.
    if groups:
        groups[-1][0].extend(range(i, len(left)))
        groups[-1][1].extend(range(j, len(right)))
    return groups


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
