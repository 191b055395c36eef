"""What of a canonical Graph is quantised: its products (the layers), and the values between them.

A *layer* is a product with what follows it in the same kernel of an accelerator: bias and clamps. A value is
quantised at its *root*: reshapes, transposes, pads and maximum pools only move integers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mansard import dims
from mansard.analysis.operands import copied, is_copy
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Apply, Arg, Const, Gather, Scalar, walk
from mansard.ir.types import IndexMap, Value
from mansard.passes.layout.padding import padding_of

F32 = DType.F32
LARGEST_TERMS = (1 << 31) // (255 * 128)
"""Sums of so many products of two bytes fit 32 bits."""
NOTHING = float("-inf")
"""What pads a maximum pool."""
_LINEAR = frozenset({"add", "sub", "mul", "div", "max", "min"})


@dataclass(frozen=True)
class Point:
    """A value to be quantised, with a zero point or (``symmetric``) around zero."""

    value: Value
    symmetric: bool = False


@dataclass(frozen=True, eq=False)
class Layer:
    """A product whose factors can be quantised."""

    name: str
    op: Generic
    points: tuple[Point | None, Point | None]
    """How each factor is quantised; None for a constant."""
    output: Value
    """Its result with bias and clamp."""

    @property
    def weight(self) -> int | None:
        """The operand that is a constant, if one is."""
        return self.points.index(None) if None in self.points else None

    @property
    def operations(self) -> int:
        """Multiply-adds, for the smallest sizes of the model's dims."""
        return operations(self.op)


@dataclass(frozen=True)
class Left:
    """A product that is not quantised, and why."""

    name: str
    op: Generic
    reason: str


@dataclass(frozen=True)
class Selection:
    """The layers of a graph, further points, and the products that stay as they are."""

    layers: tuple[Layer, ...]
    others: tuple[Point, ...]
    left: tuple[Left, ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        """All points, those of layers first."""
        inputs = (p for layer in self.layers for p in layer.points if p is not None)
        return tuple(dict.fromkeys((*inputs, *self.others)))


def select(
    graph: Graph,
    *,
    keep: Sequence[str] = (),
    attention: bool = False,
    everywhere: bool = True,
    scaled: Collection[Value] = (),
) -> Selection:
    """The layers of a canonical graph whose names match no pattern of ``keep``.

    ``attention`` includes products of two computed values. With ``everywhere``, results of layers and of
    the additions, pools and concatenations between them are points too. Those in ``scaled`` are quantised
    before their scales are taken out (`mansard.quantisation.smoothing`).
    """
    return _Selector(graph, keep, attention, scaled).run(everywhere)


class _Selector:
    def __init__(self, graph: Graph, keep: Sequence[str], attention: bool, scaled: Collection[Value]) -> None:
        self.graph, self.keep, self.attention, self.scaled = graph, keep, attention, scaled
        self.producers, self.users = graph.producers(), graph.users()
        self.live = graph.live_outs()
        self.left: list[Left] = []
        self.names: dict[str, int] = {}

    def run(self, everywhere: bool) -> Selection:
        layers = [layer for op in self.graph.ops if (layer := self._layer(op)) is not None]
        others: tuple[Point, ...] = ()
        if everywhere:
            inputs = [p.value for layer in layers for p in layer.points if p is not None]
            others = tuple(Point(v) for v in self._between(layers, inputs))
        return Selection(tuple(layers), others, tuple(self.left))

    # Layers -------------------------------------------------------------------------------------
    def _layer(self, op: Op) -> Layer | None:
        if not isinstance(op, Generic) or not op.is_contraction or op.output.type.dtype is not F32:
            return None
        name = self._name(op)
        problem = self._problem(op)
        if problem is None and any(fnmatchcase(name, pattern) for pattern in self.keep):
            problem = "kept by its name"
        if problem is not None:
            self.left.append(Left(name, op, problem))
            return None
        constants = [v in self.graph.constants for v in op.inputs]
        points = [
            None if constant else Point(self.root(v), not any(constants))
            for v, constant in zip(op.inputs, constants, strict=True)
        ]
        return Layer(name, op, (points[0], points[1]), self._end(op.output))

    def _name(self, op: Generic) -> str:
        keys = [self.graph.constants[v].key for v in op.inputs if v in self.graph.constants]
        name = keys[0].split(".scaled(")[0].removesuffix(".weight") if keys else op.output.name
        self.names[name] = self.names.get(name, 0) + 1
        return name if self.names[name] == 1 else f"{name}.{self.names[name]}"

    def _problem(self, op: Generic) -> str | None:
        """Why a product cannot be quantised."""
        body = op.body
        plain = isinstance(body, Apply) and body.op == "mul" and all(isinstance(a, Arg) for a in body.args)
        if not plain or len(op.inputs) != 2 or any(v.type.dtype is not F32 for v in op.inputs):
            return "it is no plain product of two f32 values"
        constants = [v in self.graph.constants for v in op.inputs]
        if all(constants):
            return "both factors are constants"
        if not any(constants) and not self.attention:
            return "both factors are computed (attention=True quantises those)"
        for index_map in op.maps:
            if index_map is None or index_map.fill not in (None, 0.0):
                return "a factor has a margin that is not zero"
        if any(constant and parallel_axes(op, i) is None for i, constant in enumerate(constants)):
            return "elements of the weight are read several times, or not at all"
        if dims.bounds(dims.product(op.extents[d] for d in op.reduced))[1] >= LARGEST_TERMS:
            return "its sums may exceed 32 bits"
        return None

    # Values -------------------------------------------------------------------------------------
    def root(self, value: Value) -> Value:
        """The value whose integers a value has, moved."""
        while (op := self.producers.get(value)) is not None and moves(op):
            value = op.inputs[0]
        return value

    def _end(self, value: Value) -> Value:
        """The last value of a chain of affine steps and clamps, with reshapes between, that are read once."""
        end = value
        while value not in self.live and len(users := self.users.get(value, [])) == 1:
            op = users[0]
            if value in self.scaled and op.outputs[0] not in self.scaled:
                break
            if isinstance(op, Generic) and self._follows(op, value):
                end = op.output
            elif not isinstance(op, Reshape):
                break
            value = op.output
        return end

    def _follows(self, op: Generic, value: Value) -> bool:
        """Whether an op applies constants to each element of a value."""
        if op.combiner is not None or op.output.type != value.type or isinstance(op.body, Arg):
            return False
        for node in walk(op.body):
            if isinstance(node, Arg):
                operand, identity = op.inputs[node.index], IndexMap.identity(op.rank)
                if operand is value and op.maps[node.index] != identity:
                    return False
                if operand is not value and operand not in self.graph.constants:
                    return False
            elif not isinstance(node, Const) and not (isinstance(node, Apply) and node.op in _LINEAR):
                return False
        return True

    def _between(self, layers: Sequence[Layer], inputs: Sequence[Value]) -> Iterator[Value]:
        """Results of layers, of what NPUs compute on integers between them, and what that reads, in order."""
        ends = {layer.output for layer in layers}
        whole = ends | set(inputs)
        for op in self.graph.ops:
            for value in op.outputs:
                if value not in ends and self._joins(op, whole):
                    end = self._end(value)
                    whole.add(end)
                    ends.add(end)
                    ends.update(self.root(v) for v in op.inputs if v not in self.graph.constants)
        values = (*self.graph.inputs, *(v for op in self.graph.ops for v in op.outputs))
        return (v for v in values if v in ends)

    def _joins(self, op: Op, whole: set[Value]) -> bool:
        """Whether an op adds, multiplies, averages or joins quantised values."""
        if not isinstance(op, Generic) or op.output.type.dtype is not F32 or moves(op):
            return False
        data = {v for v in op.inputs if v not in self.graph.constants}
        if not data or any(self.root(v) not in whole for v in data):
            return False
        body = op.body
        if op.combiner == "add":
            return isinstance(body, Arg) and self._is_pool(op)
        if op.combiner is not None:
            return False
        if isinstance(body, Apply) and body.op in ("add", "mul"):
            return len(data) == 2 and all(isinstance(a, Arg) for a in body.args)
        return len(data) > 1 and _is_selection(body)

    def _is_pool(self, op: Generic) -> bool:
        """Whether a sum is an average that nothing compares with its own elements, as norms do."""
        end = self._end(op.output)
        readers, seen = list(self.users.get(end, [])), {op.inputs[0], self.root(op.inputs[0])}
        while readers:
            reader = readers.pop()
            if isinstance(reader, Reshape):
                readers.extend(self.users.get(reader.output, []))
            elif isinstance(reader, Generic) and not reader.is_contraction and seen & set(reader.inputs):
                return False
        return True


def operations(product: Generic) -> int:
    """Multiply-adds of a product, for the smallest sizes of the model's dims."""
    return dims.bounds(dims.product(product.extents))[0]


def moves(op: Op) -> bool:
    """Whether an op keeps the elements of its operand as they are: a reshape, a transpose or broadcast of
    all of it, a pad, a maximum over windows."""
    if isinstance(op, Reshape):
        return True
    if not isinstance(op, Generic) or len(op.inputs) != 1 or op.inputs[0].type.dtype is not F32:
        return False
    if is_copy(op):
        value, index_map = copied(op)
        places = [r.single for r in index_map.results]
        extents = zip(places, value.type.shape, strict=True)
        return all(dims.is_one(size) or (d is not None and op.extents[d] == size) for d, size in extents)
    if op.combiner == "max":
        index_map = op.maps[0] or IndexMap()
        return isinstance(op.body, Arg) and index_map.fill in (None, NOTHING)
    padding = padding_of(op)
    return padding is not None and padding.fill in (0.0, NOTHING)


def parallel_axes(op: Generic, operand: int) -> tuple[bool, ...] | None:
    """For each axis of a weight whether parallel dims walk it; None unless every element is read once for
    each index of the parallel dims that walk it, over all reduced dims.

    Several dims may walk an axis, as in ``%w[d1, 8*d2 + d3]``.
    """
    value, index_map = op.inputs[operand], op.maps[operand]
    if index_map is None or index_map.fill is not None:
        return None
    used: set[int] = set()
    axes = []
    for index, size in zip(index_map.results, value.type.shape, strict=True):
        terms = [(d, c) for d, c in index.terms if not dims.is_one(op.extents[d])]
        walked = {d for d, _ in terms}
        parallel = {d < op.rank for d in walked}
        if used & walked or len(parallel) > 1 or index.offset != 0 or not _covers(op, terms, size):
            return None
        used |= walked
        axes.append(parallel == {True})
    return tuple(axes) if {d for d in op.reduced if not dims.is_one(op.extents[d])} <= used else None


def _covers(op: Generic, terms: Sequence[tuple[int, DimLike]], size: DimLike) -> bool:
    """Whether dims with coefficients take every index below ``size`` once."""
    step = 1
    for d, c in sorted(terms, key=lambda term: dims.bounds(term[1])[0]):
        extent = op.extents[d]
        if c != step or not isinstance(extent, int):
            return False
        step *= extent
    return step == size


def _is_selection(body: Scalar) -> bool:
    """Whether a body takes an element of one of its operands, decided by indices: a concatenation."""
    if isinstance(body, Apply) and body.op == "select":
        condition, *values = body.args
        indexed = not any(isinstance(n, (Arg, Gather)) for n in walk(condition))
        return indexed and all(_is_selection(v) for v in values)
    if isinstance(body, Gather):
        return not any(isinstance(n, (Arg, Gather)) for i in body.indices for n in walk(i))
    return isinstance(body, Arg)
