"""Constant folding: evaluate ops on constants at compile time.

`fold_constants`, before::

    const  %w: 64x64xf32 "w"
    const  %one: 64xf32 "ones"
    %t: 64x64xf32 = generic (d0:64, d1:64) {%w[d0, d1] * 0.5}
    %y: 64x64xf32 = generic (d0:64, d1:64) {%x[d0, d1] * %t[d0, d1] + %one[d1]}

after::

    const  %t: 64x64xf32 "generic:5f0c…(w)"
    %y: 64x64xf32 = generic (d0:64, d1:64) {%x[d0, d1] * %t[d0, d1] + 1.0}

The data of a folded constant is computed on first use.

`inline_generated`, before::

    %i: 8xi64 = generic (d0:8) {d0 + 2}
    %y: 8x4xf32 = generic (d0:8, d1:4) {%table{%i[d0], d1}}

after::

    %y: 8x4xf32 = generic (d0:8, d1:4) {%table{d0 + 2, d1}}
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from mansard.analysis.linear import clamp, to_scalar
from mansard.analysis.operands import is_light, with_body
from mansard.analysis.structure import attributes
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import load, run_op
from mansard.ir.interpreter.scalar import Array
from mansard.ir.ops import Assert, Generic, Op, Scan
from mansard.ir.scalar import Arg, Const, DimValue, Gather, Index, Scalar, rewrite, walk
from mansard.ir.types import Constant, Value

TINY_BYTES = 64 * 1024
"""Folding is always worthwhile up to this many bytes; larger constants must replace their operands."""
GENERATED_OPS = 8
"""The most arithmetic of an operand-free body that is recomputed in its readers rather than stored."""

_uniform: WeakKeyDictionary[Constant, tuple[float | int | bool] | None] = WeakKeyDictionary()


def fold_constants(graph: Graph, growth: float = 1.0) -> Graph:
    """Replace ops over constants by constants, and uniform constants in bodies by literals.

    A result larger than TINY_BYTES is only folded if it needs at most ``growth`` times the bytes of the
    constants that become dead: broadcasts of small constants stay ops, packed weights stay packed. Returns
    the same graph when nothing folds.
    """
    return _Folder(graph, growth).run()


class _Folder:
    def __init__(self, graph: Graph, growth: float) -> None:
        self.graph, self.growth = graph, growth
        self.constants = dict(graph.constants)
        self.users = graph.users()
        self.live = graph.live_outs()
        self.literals: dict[Value, Const] = {}
        self.generated: dict[Value, Generic] = {}
        self.unstored: dict[Value, Constant] = {}
        """What is computed from constants and too large to be one: a sum over it may be small enough."""

    def run(self) -> Graph:
        ops: list[Op] = []
        changed = False
        for op in self.graph.ops:
            new = self._with_literals(op) if isinstance(op, Generic) else self._scan_of_neutral(op)
            if isinstance(new, Generic):
                self._note_generated(new)
            gone = self._always_true(new) or self._fold(new)
            changed |= gone or new is not op
            if not gone:
                ops.append(new)
        return self.graph.with_ops(ops, constants=self.constants) if changed else self.graph

    def _always_true(self, op: Op) -> bool:
        if not isinstance(op, Assert):
            return False
        literal = self._literal(op.inputs[0])
        return literal is not None and literal.value is True

    def _literal(self, value: Value) -> Const | None:
        """The common value of all elements, if it is known."""
        if value not in self.literals and value in self.constants:
            uniform = uniform_value(value, self.constants[value])
            if uniform is not None:
                self.literals[value] = Const(uniform[0], value.type.dtype)
        return self.literals.get(value)

    def _with_literals(self, op: Generic) -> Generic:
        known = {i: c for i, v in enumerate(op.inputs) if (c := self._literal(v)) is not None}
        if not known:
            return op

        def leaf(node: Scalar) -> Scalar:
            if isinstance(node, Arg):
                return known.get(node.index, node)
            if isinstance(node, Gather) and 0 not in op.inputs[node.operand].type.shape:
                return known.get(node.operand, node)
            return node

        return with_body(op, rewrite(op.body, leaf))

    def _scan_of_neutral(self, op: Op) -> Op:
        """A scan of the combiner's neutral element (a sum of zeros) is a fill."""
        if not isinstance(op, Scan) or not op.inclusive:
            return op
        literal = self._literal(op.inputs[0])
        neutral = {"add": 0, "mul": 1}.get(op.combiner)
        if literal is None or (neutral is not None and literal.value != neutral):
            return op
        return Generic((), op.outputs, op.output.type.shape, (), literal, location=op.location)

    def _note_generated(self, op: Generic) -> None:
        if op.combiner is None and isinstance(op.body, Const):
            self.literals[op.output] = op.body
        if is_generated(op) and _static(op) and _bytes(op.output) <= TINY_BYTES:
            self.generated[op.output] = op

    # Folding --------------------------------------------------------------------------------
    def _fold(self, op: Op) -> bool:
        if op.has_effect or not all(self._is_known(v) for v in op.inputs):
            return False
        if isinstance(op, Generic) and is_generated(op):
            return False
        if not _static(op):
            return False
        sources = tuple((v, self._source(v)) for v in op.inputs)
        if not self._is_worthwhile(op):
            if isinstance(op, Generic):
                (self.unstored[op.output],) = folded(op, sources, keep=False)
            return False
        self.constants.update(zip(op.outputs, folded(op, sources), strict=True))
        return True

    def _is_known(self, value: Value) -> bool:
        return value in self.constants or value in self.generated or value in self.unstored

    def _source(self, value: Value) -> Constant:
        if value in self.constants:
            return self.constants[value]
        if value in self.unstored:
            return self.unstored[value]
        return folded(self.generated[value], ())[0]

    def _is_worthwhile(self, op: Op) -> bool:
        size = sum(_bytes(v) for v in op.outputs)
        freed = sum(
            _bytes(v)
            for v in dict.fromkeys(op.inputs)
            if v in self.constants
            and v not in self.live
            and all(user.outputs == op.outputs for user in self.users[v])
        )
        return size <= max(TINY_BYTES, self.growth * freed)


def _bytes(value: Value) -> int:
    size = value.type.bytes
    assert isinstance(size, int)
    return size


def _static(op: Op) -> bool:
    """Whether the op is free of symbolic dims."""
    if not all(isinstance(d, int) for v in (*op.inputs, *op.outputs) for d in v.type.shape):
        return False
    if not isinstance(op, Generic):
        return True
    sizes = [n.value for n in walk(op.body) if isinstance(n, DimValue)]
    results = [r for m in op.maps if m is not None for r in m.results]
    coefficients = [c for r in results for c in (r.offset, *(c for _, c in r.terms))]
    return all(isinstance(d, int) for d in (*op.extents, *sizes, *coefficients))


def folded(op: Op, sources: Sequence[tuple[Value, Constant]], *, keep: bool = True) -> list[Constant]:
    """The results of ``op`` over constants, as constants computed on first use; with ``keep`` only then."""
    results: list[Array] = []

    def compute(index: int) -> Array:
        if results:
            return results[index]
        found = [
            np.ascontiguousarray(r).reshape(r.shape) for r in run_op(op, [load(v, c) for v, c in sources])
        ]
        if keep:
            results.extend(found)
        return found[index]

    keys = ", ".join(constant.key for _, constant in sources)
    digest = hashlib.sha256(f"{attributes(op)!r}({keys})".encode()).hexdigest()[:16]
    key = f"{op.name}:{digest}({keys})" if len(keys) <= 80 else f"{op.name}:{digest}"
    many = len(op.outputs) > 1
    return [Constant(f"{key}#{i}" if many else key, partial(compute, i)) for i in range(len(op.outputs))]


def uniform_value(value: Value, constant: Constant) -> tuple[float | int | bool] | None:
    """The value that every element of a small constant has, in a tuple; None when they differ.

    Constants above TINY_BYTES are not read and give None.
    """
    if not all(isinstance(d, int) for d in value.type.shape) or not 0 < _bytes(value) <= TINY_BYTES:
        return None
    if constant not in _uniform:
        array = load(value, constant)
        first = array.reshape(-1)[:1]
        # Comparing bytes distinguishes 0.0 from -0.0 and makes NaN equal to itself.
        same = array.tobytes() == first.tobytes() * array.size
        _uniform[constant] = (first[0].item(),) if same else None
    return _uniform[constant]


# Bodies without operands --------------------------------------------------------------------
def inline_generated(graph: Graph) -> Graph:
    """Inline cheap operand-free bodies (fills, ranges, index masks) into their readers."""
    generated: dict[Value, Generic] = {}
    ops: list[Op] = []
    for op in graph.ops:
        new = _inline(op, generated) if isinstance(op, Generic) else op
        if isinstance(new, Generic) and is_generated(new):
            generated[new.output] = new
        ops.append(new)
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def is_generated(op: Generic) -> bool:
    """Whether ``op`` is a cheap function of its indices, better recomputed than stored."""
    if op.inputs or op.combiner is not None:
        return False
    if 0 in op.extents:
        return False  # an empty dim: a gather has no valid index
    return is_light(op.body, GENERATED_OPS)


def _inline(op: Generic, generated: Mapping[Value, Generic]) -> Generic:
    if not any(v in generated for v in op.inputs):
        return op

    def leaf(node: Scalar) -> Scalar:
        if isinstance(node, Arg) and op.inputs[node.index] in generated:
            index_map = op.maps[node.index]
            assert index_map is not None
            return _body_at(generated[op.inputs[node.index]], [to_scalar(r) for r in index_map.results])
        if isinstance(node, Gather) and op.inputs[node.operand] in generated:
            source = generated[op.inputs[node.operand]]
            return _body_at(source, [clamp(i, n) for i, n in zip(node.indices, source.extents, strict=True)])
        return node

    return with_body(op, rewrite(op.body, leaf))


def _body_at(op: Generic, indices: Sequence[Scalar]) -> Scalar:
    """The body of an operand-free op at given indices."""
    return rewrite(op.body, lambda node: indices[node.dim] if isinstance(node, Index) else node)
