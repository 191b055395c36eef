"""Import of ``linalg.generic`` as `Generic` ops.

linalg orders its loops freely and writes through an output map, which a `Generic` does not have. So loops are
renumbered: first the result's dims in order (a constant 0 in the output map, as from ``keepdim``, becomes a
dim of extent 1), then the reduced loops. An op with several results becomes one `Generic` for each. The
conditions of a ``cf.assert`` inside a body are a Generic of their own, of whose elements an `Assert` requires
that they are true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.linalg import affine, mlir
from mansard.frontends.linalg.arith import RULES
from mansard.frontends.linalg.body import Body
from mansard.frontends.linalg.importer import Handler, Importer, supported_like
from mansard.frontends.linalg.reduction import ONLY_INDEX, Reduction, match_reduction
from mansard.frontends.linalg.scalars import Space, dim_scalar
from mansard.frontends.linalg.values import Empty, Entry, Out, Splat, TensorEntry, shape_of
from mansard.ir.scalar import Arg, Const, Gather, Index, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, Linear, Value


@dataclass(frozen=True)
class Maps:
    """The indexing maps of an op over its loops; ``linear`` is None where a map has divisions."""

    linear: tuple[tuple[Linear | None, ...], ...]
    expressions: tuple[tuple[Any, ...], ...]
    reduced: tuple[int, ...]
    loops: int


@dataclass(frozen=True)
class Order:
    """The order of a result's iteration dims: the new number of each loop, and all extents."""

    position: tuple[int, ...]
    extents: tuple[DimLike, ...]
    rank: int


def import_generic(importer: Importer, op: Any) -> None:
    """Import one ``linalg.generic``."""
    maps = _maps(importer, op)
    extents = _loop_extents(importer, op, maps)
    count = len(op.results)
    for k in range(count):
        order = _order(importer, op, maps, extents, k)
        importer.bind(op, _result(importer, op, maps, order, k), k)


def _maps(importer: Importer, op: Any) -> Maps:
    key = (op.attributes["indexing_maps"], op.attributes["iterator_types"])
    if key not in importer.affine_maps:
        maps = [m.value for m in key[0]]
        kinds = [str(t) for t in key[1]]
        importer.affine_maps[key] = Maps(
            tuple(tuple(affine.linear_of(e) for e in m.results) for m in maps),
            tuple(tuple(m.results) for m in maps),
            tuple(i for i, kind in enumerate(kinds) if "reduction" in kind),
            len(kinds),
        )
    result: Maps = importer.affine_maps[key]
    return result


def _loop_extents(importer: Importer, op: Any, maps: Maps) -> list[DimLike]:
    """The extent of each loop, from the operand dims that it alone indexes."""
    extents: list[DimLike | None] = [None] * maps.loops
    for number in reversed(range(len(op.operands))):  # results have the simplest sizes
        operand = op.operands[number]
        if not mlir.is_tensor(operand):
            continue
        for size, linear in zip(shape_of(importer.tensor(operand)), maps.linear[number], strict=True):
            loop = None if linear is None else linear.single
            if loop is not None:
                known = extents[loop]
                extents[loop] = size if known is None else importer.unify(known, size, op)
    if any(e is None for e in extents):
        raise importer.unsupported(op, "a loop's extent is given by no operand")
    return [e for e in extents if e is not None]


def _order(importer: Importer, op: Any, maps: Maps, extents: Sequence[DimLike], result: int) -> Order:
    number = len(op.operands) - len(op.results) + result
    out_shape = shape_of(importer.tensor(op.operands[number]))
    position = [-1] * maps.loops
    ordered: list[DimLike] = []
    for size, linear in zip(out_shape, maps.linear[number], strict=True):
        loop = None if linear is None else linear.single
        if loop is not None and position[loop] < 0:
            position[loop] = len(ordered)
            ordered.append(extents[loop])
        elif linear is not None and not linear.terms and size == 1:
            ordered.append(1)
        else:
            raise importer.unsupported(op, f"output map {op.attributes['indexing_maps'][number]}")
    rank = len(ordered)
    for loop in range(maps.loops):
        if position[loop] < 0:
            if loop not in maps.reduced and extents[loop] != 1:
                raise importer.unsupported(op, f"loop d{loop} is parallel and missing in the output map")
            position[loop] = len(ordered)
            ordered.append(extents[loop])
    return Order(tuple(position), tuple(ordered), rank)


def _result(importer: Importer, op: Any, maps: Maps, order: Order, k: int) -> Entry:
    """One result of the op, as a separate Generic (none for copies and fills)."""
    body = Body(importer, order.extents)
    inits = op.operands[len(op.operands) - len(op.results) :]
    region = _Region(importer, body, op, maps, order)
    trees = region.trees()
    dtype = mlir.element_type(op.results[k].type)
    reduced = len(order.extents) - order.rank
    if k == 0:
        append_asserts(importer, op, body, region.requirements, reduced)
    init = importer.tensor(inits[k])
    if reduced == 0:
        identity = IndexMap.identity(order.rank)

        def start(node: Scalar) -> Scalar:
            return body.read(importer.tensor(inits[node.index]), identity) if isinstance(node, Out) else node

        tree = rewrite(trees[k], start)
        return _plain(importer, body, tree, order)
    if 0 in order.extents[order.rank :] or trees[k] == Out(k, trees[k].dtype):
        return _unreduced(importer, init, order)
    match = match_reduction(trees, k)
    if match is None:
        raise importer.unsupported(
            op, "the body is not a known reduction; known: add, mul, min, max, and, or, argmin, argmax"
        )
    if match.arg_index is not None:
        unit = match.arg_index == ONLY_INDEX and order.extents[-1] == 1
        if reduced != 1 or not (unit or match.arg_index == order.rank):
            raise importer.unsupported(op, "an argmin or argmax over several dims")
    return _reduce(importer, body, match, init, dtype, reduced)


def append_asserts(
    importer: Importer, op: Any, body: Body, requirements: Sequence[tuple[Scalar, str]], reduced: int = 0
) -> None:
    """Append what a body requires: (bool scalar over its iteration space, message) each."""
    for condition, message in requirements if importer.body_asserts else ():
        if any(isinstance(node, Out) for node in walk(condition)):
            raise importer.unsupported(op, "a cf.assert about the op's running or initial result")
        combiner = "and" if reduced else None
        importer.builder.assert_true(body.finish(condition, reduced, combiner, name="check"), message)


def _unreduced(importer: Importer, init: TensorEntry, order: Order) -> Entry:
    """The initial value of a reduction over no elements, or by a body that leaves it as it is."""
    kept = Order(order.position, order.extents[: order.rank], order.rank)
    body = Body(importer, kept.extents)
    return _plain(importer, body, body.read(init, IndexMap.identity(kept.rank)), kept)


def _plain(importer: Importer, body: Body, tree: Scalar, order: Order) -> Entry:
    reads = [n for n in walk(tree) if isinstance(n, (Arg, Gather, Index)) and not _is_load(n)]
    if not reads:
        return Splat(tree, order.extents, tree.dtype)
    if isinstance(tree, Arg):
        value, index_map = body.operands[tree.index]
        if value.type.shape == order.extents and _is_identity(index_map, order.extents):
            return value
    return body.finish(tree)


def _is_identity(index_map: IndexMap | None, extents: Sequence[DimLike]) -> bool:
    """Whether a map is the identity, where index 0 also counts for a dim of extent 1."""
    plain = None if index_map is None else index_map.plain_dims
    return plain is not None and all(d == i or (d is None and extents[i] == 1) for i, d in enumerate(plain))


def _is_load(node: Scalar) -> bool:
    return isinstance(node, Arg) and node.index < 0


def _reduce(
    importer: Importer, body: Body, match: Reduction, init: TensorEntry, dtype: DType, reduced: int
) -> Value:
    value = body.finish(match.body, reduced, match.combiner)
    shape = value.type.shape
    if match.arg_index is not None:
        after = Body(importer, shape)
        position = after.read(value, IndexMap.identity(len(shape)))
        return value if dtype is DType.I64 else after.finish(after.space.cast(position, dtype))
    after = Body(importer, shape)
    identity = IndexMap.identity(len(shape))
    tree = after.read(value, identity)
    if not _is_neutral(init, match.combiner):
        start = after.space.cast(after.read(init, identity), tree.dtype)
        tree = after.space.binary(match.combiner, tree, start)
    tree = after.space.cast(tree, dtype)
    return value if isinstance(tree, Arg) else after.finish(tree)


def _is_neutral(init: TensorEntry, combiner: str) -> bool:
    """Whether combining with ``init`` changes nothing.

    The lowest (highest) finite float counts as neutral for max (min): frontends use it in place of infinity.
    """
    if isinstance(init, Empty):
        return True
    if not (isinstance(init, Splat) and isinstance(init.scalar, Const)):
        return False
    value, dtype = init.scalar.value, init.dtype
    if combiner in ("add", "or"):
        return value == 0
    if combiner == "mul":
        return value == 1
    if combiner == "and":
        return value is True or (value == -1 and dtype.is_int)
    return value in _extremes(dtype, combiner)


def _extremes(dtype: DType, combiner: str) -> tuple[float, ...]:
    sign = -1 if combiner == "max" else 1
    if dtype.is_float:
        import ml_dtypes

        return (sign * float("inf"), sign * float(ml_dtypes.finfo(dtype.numpy).max))
    top = 1 << (dtype.bits - 1)
    return (-top if combiner == "max" else top - 1,)


class _Region:
    """Evaluates the body of a linalg op to one scalar tree for each result."""

    def __init__(self, importer: Importer, body: Body, op: Any, maps: Maps, order: Order) -> None:
        self.importer, self.body, self.op, self.maps, self.order = importer, body, op, maps, order
        self.loops = [Linear.dim(p) for p in order.position]
        self.inputs = len(op.operands) - len(op.results)
        self.scalars: dict[Any, Scalar] = {}
        self.requirements: list[tuple[Scalar, str]] = []

    def trees(self) -> list[Scalar]:
        block = self.op.regions[0].blocks[0]
        for number, argument in enumerate(block.arguments):
            dtype = mlir.element_type(argument.type)
            if number >= self.inputs:
                self.scalars[argument] = Out(number - self.inputs, dtype)
            elif self._is_used(argument):
                self.scalars[argument] = self._read(number)
        scalars = RegionScalars(self.importer, self.body, self.scalars, self.loop_index)
        self.requirements = scalars.requirements
        return scalars.run(block)

    @staticmethod
    def _is_used(argument: Any) -> bool:
        return next(iter(argument.uses), None) is not None

    def loop_index(self, loop: int) -> Scalar:
        """The value of a loop, in the result's iteration dims."""
        return loop_scalar(self.body.space, self.order, loop)

    def _read(self, number: int) -> Scalar:
        operand = self.op.operands[number]
        if not mlir.is_tensor(operand):
            return self.importer.scalar(operand)
        entry = self.importer.tensor(operand)
        linear = self.maps.linear[number]
        if all(x is not None for x in linear):
            return self.body.read(entry, IndexMap(tuple(x.compose(self.loops) for x in linear if x)))
        loops = [self.loop_index(i) for i in range(self.maps.loops)]
        space = self.body.space
        indices = [affine.evaluate(space, e, loops) for e in self.maps.expressions[number]]
        return self.body.extract(entry, indices)


def loop_scalar(space: Space, order: Order, loop: int) -> Scalar:
    """A loop's index as a scalar; 0 for a parallel loop of extent 1 (reductions are recognised by their
    index)."""
    position = order.position[loop]
    unit = position < order.rank and order.extents[position] == 1
    return Const(0, DType.I64) if unit else Index(position)


class RegionScalars:
    """Evaluates ops of a region to scalars over a body's iteration space."""

    def __init__(
        self,
        importer: Importer,
        body: Body,
        scalars: dict[Any, Scalar],
        loop_index: Callable[[int], Scalar],
    ) -> None:
        self.importer, self.body, self.scalars, self.loop_index = importer, body, scalars, loop_index
        self.requirements: list[tuple[Scalar, str]] = []
        """What the region asserts where it is evaluated, for `append_asserts`."""
        self._guards: list[Scalar] = []

    def run(self, block: Any) -> list[Scalar]:
        """Evaluate a block; returns the operands of its yield."""
        for view in block.operations:
            op = view.operation
            if op.name in _YIELDS:
                return [self._scalar(v) for v in op.operands]
            for result, scalar in zip(op.results, self._evaluate(op), strict=True):
                self.scalars[result] = scalar
        raise ImportModelError(f"a region of {block.owner} has no yield")

    def _scalar(self, value: Any) -> Scalar:
        scalar = self.scalars.get(value)
        return self.importer.scalar(value) if scalar is None else scalar

    def _evaluate(self, op: Any) -> list[Scalar]:
        name = op.name
        if name in RULES:
            args = [self._scalar(v) for v in op.operands]
            return [RULES[name](self.body.space, op, args, mlir.element_type(op.results[0].type))]
        special = _SPECIAL.get(name)
        if special is None:
            raise self.importer.unsupported(op, f"inside a body; {supported_like(name, {*RULES, *_SPECIAL})}")
        return special(self, op)

    def _constant(self, op: Any) -> list[Scalar]:
        return [mlir.scalar_literal(op)]

    def _index(self, op: Any) -> list[Scalar]:
        return [self.loop_index(op.attributes["dim"].value)]

    def _extract(self, op: Any) -> list[Scalar]:
        entry = self.importer.tensor(op.operands[0])
        indices = [self._scalar(v) for v in list(op.operands)[1:]]
        return [self.body.extract(entry, indices)]

    def _dim(self, op: Any) -> list[Scalar]:
        axis = self.importer.dim(self._scalar(op.operands[1]), op)
        return [dim_scalar(shape_of(self.importer.tensor(op.operands[0]))[int(str(axis))])]

    def _apply(self, op: Any) -> list[Scalar]:
        return [apply_map(self.body.space, op, [self._scalar(v) for v in op.operands])]

    def _assert(self, op: Any) -> list[Scalar]:
        space, condition = self.body.space, self._scalar(op.operands[0])
        for guard in self._guards:
            condition = space.binary("or", space.unary("not", guard), condition)
        if not (isinstance(condition, Const) and condition.value):
            self.requirements.append((condition, op.attributes["msg"].value))
        return []

    def _if(self, op: Any) -> list[Scalar]:
        """Both branches are evaluated: they only read, and no read can fail; asserts hold in theirs."""
        condition = self._scalar(op.operands[0])
        branches = []
        for region, guard in zip(
            op.regions, (condition, self.body.space.unary("not", condition)), strict=True
        ):
            self._guards.append(guard)
            branches.append(self.run(region.blocks[0]) if len(region.blocks) else [])
            self._guards.pop()
        then, other = branches if op.results else ([], [])
        return [self.body.space.select(condition, a, b) for a, b in zip(then, other, strict=True)]


def apply_map(space: Space, op: Any, operands: Sequence[Scalar]) -> Scalar:
    """The result of ``affine.apply``, ``affine.min`` or ``affine.max``."""
    affine_map = op.attributes["map"].value
    dim_values, symbols = operands[: affine_map.n_dims], operands[affine_map.n_dims :]
    values = [affine.evaluate(space, e, dim_values, symbols) for e in affine_map.results]
    result = values[0]
    for value in values[1:]:
        result = space.binary("min" if op.name == "affine.min" else "max", result, value)
    return result


_YIELDS = ("linalg.yield", "tensor.yield", "scf.yield", "tm_tensor.yield")
_SPECIAL: dict[str, Callable[[RegionScalars, Any], list[Scalar]]] = {
    "arith.constant": RegionScalars._constant,
    "linalg.index": RegionScalars._index,
    "tensor.extract": RegionScalars._extract,
    "tensor.dim": RegionScalars._dim,
    "affine.apply": RegionScalars._apply,
    "affine.min": RegionScalars._apply,
    "affine.max": RegionScalars._apply,
    "cf.assert": RegionScalars._assert,
    "scf.if": RegionScalars._if,
}


HANDLERS: dict[str, Handler] = {
    "linalg.generic": import_generic,
}
