"""Scalar bodies as infix text; `mansard.ir.text.body_parser` reads it back.

``%x[…]`` reads an operand by an index map, ``%x{…}`` gathers at computed (clamped) indices, ``d0`` is the
index of a loop, ``dim(…)`` the value of a dim expression, ``f16(…)`` a conversion. Shared subexpressions
are named ``t0``, ``t1``. Literals are f32, i64 or bool unless they say otherwise (``1.0:f16``).

Operands are in order of their first use (`operand_order`), else they are listed before the body, which may
then call them ``in0``, ``in1``. Printing does not recurse: bodies may be deeper than Python's stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mansard import dims
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
from mansard.ir.scalar_ops import find_scalar_op
from mansard.ir.text.literals import default_dtype, number_text, read_text, value_text
from mansard.ir.text.operands import Operand, gathered_operand, operand_order


def body_text(operands: Sequence[Operand], body: Scalar) -> str:
    """The operands, where they have to be listed, and the body in braces."""
    texts = [read_text(*operand) for operand in operands]
    gathered = {n.operand for n in walk(body) if isinstance(n, Gather)}
    listed = (
        operand_order(body) != list(range(len(operands)))
        or len(set(operands)) < len(operands)
        or any(operands[i][1] is not None for i in gathered)
    )
    reads = [
        t if operands.count(o) == 1 else f"in{i}"
        for i, (o, t) in enumerate(zip(operands, texts, strict=True))
    ]
    gathers = [
        value_text(value) if gathered_operand(operands, value) == i else f"in{i}"
        for i, (value, _) in enumerate(operands)
    ]
    text = f"{{{_Printer(reads, gathers).text(body)}}}"
    return f"({', '.join(texts)}) {text}" if listed else text


class _Printer:
    def __init__(self, reads: Sequence[str], gathers: Sequence[str]) -> None:
        self.reads, self.gathers = reads, gathers

    def text(self, body: Scalar) -> str:
        """The body with shared inner nodes named, so that the text stays as small as the expression."""
        nodes = list(walk(body))
        uses = Counter(id(kid) for node in nodes for kid in children(node))
        names: dict[int, str] = {}
        definitions: list[str] = []
        for node in nodes:
            if uses[id(node)] > 1 and children(node):
                definition = _bare(self._expression(node, names))
                names[id(node)] = f"t{len(names)}"
                definitions.append(f"{names[id(node)]} = {definition}; ")
        return "".join(definitions) + _bare(self._expression(body, names))

    def _expression(self, root: Scalar, names: Mapping[int, str]) -> str:
        done: dict[int, str] = {}
        for node in walk(root):
            done[id(node)] = names.get(id(node)) or self._node(node, [done[id(k)] for k in children(node)])
        return done[id(root)]

    def _node(self, node: Scalar, kids: list[str]) -> str:
        match node:
            case Arg():
                return self.reads[node.index]
            case Const():
                typed = "" if node.dtype is default_dtype(node.value) else f":{node.dtype.value}"
                return number_text(node.value) + typed
            case Index():
                return f"d{node.dim}"
            case DimValue():
                return f"dim({dims.to_expr(node.value)})"
            case Gather():
                return f"{self.gathers[node.operand]}{{{', '.join(map(_bare, kids))}}}"
            case Cast():
                return f"{node.dtype.value}({_bare(kids[0])})"
            case Bitcast():
                return f"bitcast_{node.dtype.value}({_bare(kids[0])})"
            case Apply():
                declared = find_scalar_op(node.op)
                if declared is not None and declared.infix is not None:
                    return f"({kids[0]} {declared.infix.symbol} {kids[1]})"
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
