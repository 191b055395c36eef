"""Readable text of a Graph: one line for each op.

    graph main
      input  %x: 4x8xf32
      const  %w: 8x5xf32 "layer.weight"
      %y: 4x5xf32 = generic (d0:4, d1:5 | d2:8) add {%x[d0, d2] * %w[d2, d1]}
      return %y

Dims after the bar are reduced by the combiner in front of the body. ``%x[…]`` reads by an index
map, ``%x{…}`` gathers at computed (clamped) indices; shared subexpressions are named ``t0``, ``t1``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from mansard import dims
from mansard.dims import DimLike
from mansard.ir.dispatch import DispatchGraph
from mansard.ir.graph import Graph
from mansard.ir.ops import Assert, Attention, Concat, Generic, Op, Pad, Reshape, Scan, Scatter, Slice, Sort
from mansard.ir.scalar import (
    Apply,
    Arg,
    Bitcast,
    Cast,
    Const,
    DimValue,
    Gather,
    Index,
    Scalar,
    children,
    walk,
)
from mansard.ir.types import Value

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "rem": "%", "pow": "**",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip


def print_graph(graph: Graph, locations: bool = False) -> str:
    """``graph`` as text; ``locations`` adds where each op comes from."""
    return "\n".join(_lines(graph, locations)) + "\n"


def _lines(graph: Graph, locations: bool) -> Iterator[str]:
    yield f"graph {graph.name}"
    for _, s in sorted(graph.dims().items()):
        step = f" step {s.multiple}" if s.multiple != 1 else ""
        yield f"  dim    {s.name}: {s.min} to {s.max}{step}"
    for value in graph.inputs:
        yield f"  input  {typed(value)}"
    for state in graph.states:
        yield f"  state  {typed(state.before)} -> {state.after}"
    for value, constant in graph.constants.items():
        yield f'  const  {typed(value)} "{constant.key}"'
    for op in graph.ops:
        yield "  " + print_op(op, locations)
    names = graph.output_names or tuple(v.name for v in graph.outputs)
    results = (str(v) if v.name == n else f"{v} as {n}" for v, n in zip(graph.outputs, names, strict=True))
    yield f"  return {', '.join(results)}".rstrip()


def typed(value: Value) -> str:
    """A value with its type."""
    return f"{value}: {value.type}"


def print_op(op: Op, locations: bool = False) -> str:
    """One op as one line."""
    results = ", ".join(map(typed, op.outputs))
    text = f"{results} = {_right_side(op)}" if op.outputs else _right_side(op)
    return f"{text}  // {op.location}" if locations and op.location.text else text


def print_dispatches(graph: DispatchGraph) -> str:
    """``graph`` as text: each dispatch with its buffers, then its ops."""
    lines = []
    for dispatch in graph.dispatches:
        inputs = ", ".join(map(typed, dispatch.inputs))
        outputs = ", ".join(map(typed, dispatch.outputs))
        domain = ", ".join(map(str, dispatch.domain))
        lines.append(f"dispatch {dispatch.name}[{domain}] ({inputs}) -> ({outputs})")
        lines.extend(f"  {print_op(op)}" for op in dispatch.ops)
    return "\n".join(lines)


def _right_side(op: Op) -> str:
    operands = ", ".join(map(str, op.inputs))
    match op:
        case Generic():
            return f"generic ({_extents(op)}) {op.combiner + ' ' if op.combiner else ''}{{{_body(op)}}}"
        case Reshape():
            return f"reshape {operands}"
        case Slice():
            return f"slice {operands} offsets {_list(op.offsets)} strides {_list(op.strides)}"
        case Concat():
            return f"concat {operands} axis {op.axis}"
        case Pad():
            return f"pad {operands} low {_list(op.low)} high {_list(op.high)} value {op.value}"
        case Scatter():
            return f"scatter {operands}" + (f" {op.combiner}" if op.combiner else "")
        case Sort():
            limit = f" limit {op.limit}" if op.limit is not None else ""
            return f"sort {operands} axis {op.axis}{' descending' if op.descending else ''}{limit}"
        case Scan():
            kind = "" if op.inclusive else " exclusive"
            return f"scan {operands} axis {op.axis} {op.combiner}{kind}"
        case Attention():
            return f"attention {operands} scale {op.scale!r}{' causal' if op.causal else ''}"
        case Assert():
            return f"assert {operands} {op.message!r}"
        case _:
            return f"{op.name} {operands}"


def _list(items: Sequence[DimLike]) -> str:
    return "[" + ", ".join(map(str, items)) + "]"


def _extents(op: Generic) -> str:
    named = [f"d{i}:{e}" for i, e in enumerate(op.extents)]
    rank = op.output.type.rank
    parallel, reduced = ", ".join(named[:rank]), ", ".join(named[rank:])
    return f"{parallel} | {reduced}".lstrip() if reduced else parallel


def _body(op: Generic) -> str:
    """The body with shared inner nodes named, so that the text stays as small as the expression."""
    nodes = list(walk(op.body))
    uses = Counter(id(kid) for node in nodes for kid in children(node))
    names: dict[int, str] = {}
    lets: list[str] = []
    for node in nodes:
        if uses[id(node)] > 1 and children(node):
            text = _scalar(op, node, names)
            names[id(node)] = f"t{len(lets)}"
            lets.append(f"t{len(lets)} = {text}; ")
    return "".join(lets) + _bare(_scalar(op, op.body, names))


def _scalar(op: Generic, node: Scalar, names: dict[int, str]) -> str:
    """A node as infix text. Iterative, since bodies may be deeper than the recursion limit."""
    done: dict[int, str] = {}
    for n in walk(node):
        done[id(n)] = names.get(id(n)) or _one(op, n, [done[id(k)] for k in children(n)])
    return done[id(node)]


def _one(op: Generic, node: Scalar, kids: list[str]) -> str:
    match node:
        case Arg():
            index_map = op.maps[node.index]
            inside = ", ".join(map(str, index_map.results)) if index_map is not None else "?"
            fill = "" if index_map is None or index_map.fill is None else f" else {index_map.fill}"
            return f"{op.inputs[node.index]}[{inside}{fill}]"
        case Const():
            return str(node.value).lower() if isinstance(node.value, bool) else repr(node.value)
        case Index():
            return f"d{node.dim}"
        case DimValue():
            return str(node.value) if isinstance(node.value, int) else f"({dims.to_expr(node.value)})"
        case Gather():
            return f"{op.inputs[node.operand]}{{{', '.join(kids)}}}"
        case Cast():
            return f"{node.dtype.value}({_bare(kids[0])})"
        case Bitcast():
            return f"bitcast_{node.dtype.value}({_bare(kids[0])})"
        case Apply():
            if node.op in _INFIX:
                return f"({kids[0]} {_INFIX[node.op]} {kids[1]})"
            return f"{node.op}({', '.join(map(_bare, kids))})"


def _bare(text: str) -> str:
    """``text`` without parentheses that enclose all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if i == len(text) - 1 else text
    return text
