"""Attention with the matrix units of a GPU: a subgroup holds some rows, and all about them in registers.

Dao, "FlashAttention-2" (2023), with cooperative matrices. Keys and values of a block lie in workgroup
memory as they lie in buffers; every subgroup multiplies its rows with all of them. Scores never leave the
registers: a row is reduced across its matrices element by element first, then once across invocations,
and exponentials become factors of the second product where they are. The next keys and values are on
their way from the buffers meanwhile.

A matrix does not say which element an invocation holds. Where masks need to know, a matrix of numbers
from memory tells; blocks of keys that every row of a tile sees are taken without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.backend import KernelTarget, MatrixShape
from mansard.codegen.kernel import KValue, matrix
from mansard.codegen.nest import Root
from mansard.codegen.schedules.attention_nest import (
    AttentionNest,
    Group,
    Loops,
    classify,
    key_bounds,
    last_end,
    needs_place,
    without_ends,
)
from mansard.codegen.schedules.base import MAX_GRID, Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.online_softmax import LOWEST, larger, reciprocal, store_results
from mansard.codegen.schedules.parameters import Parameters
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.ops import Generic
from mansard.ir.scalar import Arg, Cast, Scalar
from mansard.ir.types import Linear, Value

FEW_ROWS = 32
"""With fewer rows to a head most of a matrix would be empty."""
MOST_ELEMENTS = 128
"""Elements of a key or of a value: more results than these fit no registers."""
_PIECE = 8
"""Elements of 16 bits that a read takes."""


@dataclass(frozen=True)
class MatrixTile:
    """Rows and keys of a block are multiples of the shape's; ``threads`` are whole subgroups, each with as
    many rows as the shape."""

    shape: MatrixShape
    keys: int
    threads: int
    subgroups: int

    @property
    def rows(self) -> int:
        """Rows of a workgroup."""
        return self.subgroups * self.shape.m

    def shared_pieces(self, depth: int, columns: int) -> int:
        """Pieces of 16 bytes in workgroup memory: keys and values of a block, or a tile's results in f32."""
        tiles = self.keys * (depth // _PIECE + 1 + columns // _PIECE + 1)
        queries = self.rows * (depth // _PIECE + 1)
        return max(tiles, queries, self.rows * (columns // 4 + 1))

    def shared_bytes(self, depth: int, columns: int) -> int:
        """Bytes of workgroup memory, with the matrix that tells places."""
        return 16 * self.shared_pieces(depth, columns) + 4 * self.shape.m * self.shape.n


@dataclass(frozen=True)
class Operand:
    """A factor as it lies in a buffer: contiguous along ``group``, each row at a multiple of 16 bytes."""

    value: Value
    address: Linear
    group: Group


def choose_tile(nest: AttentionNest, target: KernelTarget) -> MatrixTile | None:
    """The tile for an attention; None where the target has no matrix units for it, or it does not lie so."""
    tiles = tiles_for(nest, target)
    return tiles[0] if tiles else None


def tiles_for(nest: AttentionNest, target: KernelTarget) -> list[MatrixTile]:
    """All tiles there are to choose from, the default first."""
    least, most = target.subgroup
    loops = classify(nest)
    depth, columns = nest.depth_and_columns()
    found = operands(nest, loops)
    if least != most or not {"matrix_reductions", "matrix_conversions"} <= target.features or found is None:
        return []
    if (
        nest.form.partial is not None
        or loops.lane is None
        or estimate(nest.total(loops.lane)) < FEW_ROWS
        or len(nest.parts()) > 1
    ):
        return []
    dtype = found[0].value.type.dtype
    shapes = [s for s in target.matrices if s.operand is dtype and s.accumulator is DType.F32 and s.n == s.k]
    if max(depth, columns) > MOST_ELEMENTS:
        return []
    tiles = []
    for shape in shapes:
        if depth % shape.k or columns % shape.n or shape.k % _PIECE:
            continue
        for keys, subgroups in ((64, 4), (64, 8), (128, 4), (128, 8), (32, 4), (64, 2), (32, 2)):
            tile = MatrixTile(shape, keys, subgroups * least, subgroups)
            fits = tile.shared_bytes(depth, columns) <= target.shared_memory_bytes and keys % shape.n == 0
            if fits and tile.threads <= target.workgroup_invocations:
                tiles.append(tile)
    return tiles


def parameters_of(tile: MatrixTile) -> Parameters:
    """A tile as the tuner knows it."""
    return Parameters.of(matrix=tile.shape.m, keys=tile.keys, threads=tile.threads)


def operands(nest: AttentionNest, loops: Loops) -> tuple[Operand, Operand, Operand] | None:
    """Query, key and value, if matrices can be read from where they lie: 16-bit floats of one type."""
    form, column = nest.form, loops.column
    if column is None:
        return None
    sides: tuple[tuple[Root, Scalar, Group], ...] = (
        (nest.scores, form.query, [nest.depth_loop]),
        (nest.scores, form.key, [nest.depth_loop]),
        (nest.weighted, form.value, column),
    )
    found = [_operand(nest, *side) for side in sides]
    query, key, value = found
    if query is None or key is None or value is None:
        return None
    return (query, key, value) if len({o.value.type.dtype for o in (query, key, value)}) == 1 else None


def _operand(nest: AttentionNest, root: Root, factor: Scalar, group: Group) -> Operand | None:
    if not isinstance(factor, Cast) or not isinstance(factor.arg, Arg):
        return None
    op, operand = root.op, factor.arg.index
    if nest.guards(op, operand, root.index):
        return None
    value, address = nest.locate(op.inputs[operand], nest.operand_index(op, operand, root.index))
    if not isinstance(address, Linear) or value.type.dtype not in (DType.F16, DType.BF16):
        return None
    terms = {loop: c for loop, c in address.terms if not dims.is_one(nest.extents[loop])}
    apart = [c for loop, c in terms.items() if loop not in group]
    if terms.get(group[-1]) != 1 or any(dims.exact_div(c, _PIECE) is None for c in (*apart, address.offset)):
        return None
    return Operand(value, address, group)


def schedule(nest: AttentionNest, target: KernelTarget, name: str, tile: MatrixTile) -> Scheduled:
    """One workgroup takes tiles of query rows of one head, each over all of its keys."""
    loops = classify(nest)
    lane = loops.lane
    assert lane is not None
    rest = [*loops.heads, *(g for g in loops.rows if g is not lane)]
    frame = Frame(nest, target, name, tile.threads)
    b, ev = frame.b, frame.ev
    tiles = dims.ceildiv(nest.total(lane), tile.rows)
    counts = (nest.total([d for g in rest for d in g]), tiles)
    total = dims.product(counts)
    workgroups = dims.minimum(total, MAX_GRID)
    flash = _MatrixFlash(frame, nest, loops, tile)
    with b.for_(b.workgroup_id(0), ev.dim(total), ev.dim(workgroups)) as loop, ev.scope():
        head, number = frame.decode(loop.index, counts)
        if rest:
            frame.bind_flat(rest, head)
        # With a causal mask the last rows take longest: they come first.
        number = b.sub(ev.dim(dims.add(tiles, -1)), number)
        flash.run(b.mul(number, b.idx(tile.rows)))
    return frame.finish((workgroups, 1, 1))


class _MatrixFlash:
    def __init__(self, frame: Frame, nest: AttentionNest, loops: Loops, tile: MatrixTile) -> None:
        assert loops.lane is not None
        self.frame, self.nest, self.loops, self.tile, self.lane = frame, nest, loops, tile, loops.lane
        self.b, self.ev, self.form = frame.b, frame.ev, nest.form
        found = operands(nest, loops)
        assert found is not None
        self.query, self.key, self.value = found
        self.dtype = self.query.value.type.dtype
        self.extent: DimLike = nest.total(self.lane)
        self.length = nest.extents[nest.key_loop]
        self.depth, self.columns = nest.depth_and_columns()
        b, shape = self.b, tile.shape
        self.sums = matrix.c_type(DType.F32, shape.m, shape.n)
        self.left = matrix.a_type(self.dtype, shape.m, shape.k)
        self.right = matrix.b_type(self.dtype, shape.k, shape.n)
        self.key_stride, self.value_stride = self.depth // _PIECE + 1, self.columns // _PIECE + 1
        self.values_at = tile.keys * self.key_stride
        self.memory = b.shared(DType.I32, tile.shared_pieces(self.depth, self.columns), 4)
        self.id = b.local_id(0)
        self.own = b.mul(b.subgroup_place("subgroup_id"), b.idx(shape.m))  # the subgroup's first row
        self.seen = without_ends(nest)
        self.places = self._places()

    def _places(self) -> KValue | None:
        """A matrix whose elements are their own numbers, row by row."""
        b, shape, size = self.b, self.tile.shape, self.tile.shape.m * self.tile.shape.n
        if divides(self.length, self.tile.keys) and not needs_place(self.nest, {}):
            return None
        numbers = b.shared(DType.F32, size)
        with b.for_(self.id, size, self.tile.threads) as loop:
            b.store(numbers, loop.index, b.cast(loop.index, DType.F32))
        b.barrier()
        return matrix.load(b, self.sums, numbers, b.idx(0), b.idx(shape.n))

    # The tile -------------------------------------------------------------------------------
    def run(self, first: KValue) -> None:
        """The rows from ``first`` on."""
        b, tile = self.b, self.tile
        self.first = first
        queries = self._queries()
        keys, whole = self._ends()
        self._put(0, self.key_stride, self._read(self.key, b.idx(0)))
        b.barrier()
        zero, lowest = matrix.fill(b, self.sums), matrix.fill(b, self.sums, LOWEST)
        state: Sequence[KValue] = [lowest, zero, *([zero] * (self.columns // tile.shape.n))]
        parts = [(b.idx(0), whole, True)]
        if key_bounds(self.nest) or not divides(self.length, tile.keys):
            parts.append((whole, keys, False))
        for lower, upper, seen in parts:
            with b.for_(lower, upper, b.idx(tile.keys), inits=state) as loop, self.ev.scope():
                loop.yield_(*self._block(loop.index, queries, loop.carried, seen))
            state = loop.results
        self._finish(state[1], state[2:])

    def _queries(self) -> list[KValue]:
        """The subgroup's rows as left factors, through workgroup memory."""
        b, shape = self.b, self.tile.shape
        stride = self.key_stride
        b.barrier()  # the results before have been read
        self._put(0, stride, self._read(self.query, self.first, rows=self.tile.rows))
        b.barrier()
        base = b.mul(self.own, b.idx(stride))
        found = [
            matrix.load(b, self.left, self.memory, b.add(base, b.idx(d // _PIECE)), b.idx(stride))
            for d in range(0, self.depth, shape.k)
        ]
        b.barrier()
        return found

    def _ends(self) -> tuple[KValue, KValue]:
        """The end of the keys of any row, and that of the whole blocks which all rows see."""
        b, ev, tile = self.b, self.ev, self.tile
        last = self.frame.minimum(b.add(self.first, b.idx(tile.rows - 1)), ev.dim(dims.add(self.extent, -1)))
        keys = whole = ev.dim(self.length)
        for end in key_bounds(self.nest):
            at_first, at_last = (
                last_end(self.frame, self.nest, end, self.lane, r) for r in (self.first, last)
            )
            if at_first is None or at_last is None:
                whole = b.idx(0)
                continue
            keys = b.binary("max", self.frame.minimum(keys, at_last), b.idx(0))
            whole = b.binary("max", self.frame.minimum(whole, at_first), b.idx(0))
        whole = b.mul(b.binary("div", whole, b.idx(tile.keys)), b.idx(tile.keys))
        return keys, whole

    # Workgroup memory -----------------------------------------------------------------------
    def _read(self, operand: Operand, first: KValue, rows: int = 0) -> list[tuple[KValue, KValue, KValue]]:
        """An invocation's pieces of some lines of an operand, with their lines and places in these: of query
        rows, or of the keys of a block. Lines beyond the last are those before; values there are 0."""
        b, ev, nest = self.b, self.ev, self.nest
        lines = rows or self.tile.keys
        group, extent = (self.lane, self.extent) if rows else ([nest.key_loop], self.length)
        width = nest.total(operand.group)
        assert isinstance(width, int)
        pieces = width // _PIECE
        size, threads = lines * pieces, self.tile.threads
        exact = divides(extent, lines)
        out = []
        for number in range(-(-size // threads)):
            element = b.add(self.id, b.idx(number * threads))
            if size % threads:
                element = self.frame.minimum(element, b.idx(size - 1))
            line, piece = b.binary("div", element, b.idx(pieces)), b.binary("rem", element, b.idx(pieces))
            place = b.add(first, line)
            near = place if exact and rows else self.frame.minimum(place, ev.dim(dims.add(extent, -1)))
            with ev.scope():
                ev.bind(group, near)
                ev.bind(operand.group, b.mul(piece, b.idx(_PIECE)))
                address, _ = ev.linear(operand.address)
            words = b.load_words(b.bindings[ev.binding_of[operand.value]], address, 4)
            if operand is self.value and not exact:
                inside = b.compare("lt", place, ev.dim(extent))
                words = b.select(b.splat(inside, 4), words, b.const(0, DType.I32, 4))
            out.append((line, piece, words))
        return out

    def _put(self, base: int, stride: int, pieces: Sequence[tuple[KValue, KValue, KValue]]) -> None:
        b = self.b
        for line, piece, words in pieces:
            b.store(self.memory, b.add(b.add(b.mul(line, b.idx(stride)), piece), b.idx(base)), words)

    # A block of keys ------------------------------------------------------------------------
    def _block(
        self, first: KValue, queries: Sequence[KValue], state: Sequence[KValue], seen: bool
    ) -> list[KValue]:
        """The block's keys lie in workgroup memory; those of the next are put there on the way."""
        b, tile = self.b, self.tile
        top, total, *results = state
        values = self._read(self.value, first)
        scores = self._masked(first, self._scores(queries), seen)
        top, scale, powers = self._softmax(top, scores)
        total = matrix.mapped(b, [total, scale, *powers], lambda e: _fold(b.add, [b.mul(e[0], e[1]), *e[2:]]))
        results = [b.mul(r, scale) for r in results]
        weights = [matrix.as_factor(b, p, "a", self.dtype) for p in powers]
        self._put(self.values_at, self.value_stride, values)
        keys = self._read(self.key, b.add(first, b.idx(tile.keys)))
        b.barrier()
        results = self._accumulate(weights, results)
        self._put(0, self.key_stride, keys)
        b.barrier()
        return [top, total, *results]

    def _scores(self, queries: Sequence[KValue]) -> list[KValue]:
        b, shape, stride = self.b, self.tile.shape, self.key_stride
        sums = [matrix.fill(b, self.sums) for _ in range(self.tile.keys // shape.n)]
        for d, query in enumerate(queries):
            for n in range(len(sums)):
                place = b.idx(n * shape.n * stride + d * shape.k // _PIECE)
                key = matrix.load(b, self.right, self.memory, place, b.idx(stride), by="columns")
                sums[n] = matrix.multiply(b, query, key, sums[n])
        return sums

    def _masked(self, first: KValue, scores: Sequence[KValue], seen: bool) -> list[KValue]:
        """The maps between scores and softmax; keys beyond the last are hidden, of which there are none
        where all are ``seen``."""
        b, shape = self.b, self.tile.shape
        special = self.seen if seen else {}
        hides = not seen and not divides(self.length, self.tile.keys)
        if not hides and not needs_place(self.nest, special):
            return [matrix.mapped(b, [s], lambda e: self._map(special, e[0], None)) for s in scores]
        assert self.places is not None
        out = []
        for n, score in enumerate(scores):
            start = b.add(first, b.idx(n * shape.n))
            emit = self._map_at(special, start, hides)
            out.append(matrix.mapped(b, [score, self.places], emit))
        return out

    def _map_at(
        self, special: dict[Generic, Generic], start: KValue, hides: bool
    ) -> Callable[[Sequence[KValue]], KValue]:
        b, ev, shape = self.b, self.ev, self.tile.shape

        def emit(elements: Sequence[KValue]) -> KValue:
            score, number = elements[0], b.cast(elements[1], b.index)
            row = b.add(b.add(self.first, self.own), b.binary("div", number, b.idx(shape.n)))
            key = b.add(start, b.binary("rem", number, b.idx(shape.n)))
            if not divides(self.extent, self.tile.rows):
                row = self.frame.minimum(row, ev.dim(dims.add(self.extent, -1)))
            near = self.frame.minimum(key, ev.dim(dims.add(self.length, -1))) if hides else key
            score = self._map(special, score, (row, near))
            if hides:
                there = b.compare("lt", key, ev.dim(self.length))
                score = b.select(there, score, b.const(float("-inf"), DType.F32))
            return score

        return emit

    def _map(
        self, special: dict[Generic, Generic], score: KValue, place: tuple[KValue, KValue] | None
    ) -> KValue:
        ev = self.ev
        with ev.scope():
            if place is not None:
                ev.bind(self.lane, place[0])
                ev.bind([self.nest.key_loop], place[1])
            else:  # not used by what is evaluated
                ev.bind(self.lane, self.b.idx(0))
                ev.bind([self.nest.key_loop], self.b.idx(0))
            ev.special = special
            ev.reduced[self.form.scores] = score
            value = ev.value(self.form.masked, self.nest.masked_index())
            ev.special = {}
        return value

    def _softmax(self, before: KValue, scores: Sequence[KValue]) -> tuple[KValue, KValue, list[KValue]]:
        """New maxima of the rows, scales of older sums, and exponentials."""
        b = self.b
        local = matrix.mapped(b, scores, lambda e: _fold(lambda x, y: larger(b, x, y), e))
        rows = matrix.reduce_rows(b, "max", local)
        top = matrix.mapped(b, [before, rows], lambda e: larger(b, e[0], e[1]))
        scale = matrix.mapped(b, [before, top], lambda e: self._power(e[0], e[1]))
        powers = [matrix.mapped(b, [s, top], lambda e: self._power(e[0], e[1])) for s in scores]
        return top, scale, powers

    def _power(self, value: KValue, top: KValue) -> KValue:
        """``exp(value - top)`` with the hardware's power of two: its error is far below that of the factor
        of 16 bits it becomes."""
        b = self.b
        return b.unary("exp2_native", b.mul(b.sub(value, top), b.const(1 / math.log(2), DType.F32)))

    def _accumulate(self, weights: Sequence[KValue], results: Sequence[KValue]) -> list[KValue]:
        b, shape, stride = self.b, self.tile.shape, self.value_stride
        sums = list(results)
        for n, weight in enumerate(weights):
            for c in range(len(sums)):
                place = b.idx(self.values_at + n * shape.k * stride + c * shape.n // _PIECE)
                value = matrix.load(b, self.right, self.memory, place, b.idx(stride))
                sums[c] = matrix.multiply(b, weight, value, sums[c])
        return sums

    # The result -----------------------------------------------------------------------------
    def _finish(self, total: KValue, results: Sequence[KValue]) -> None:
        """Through workgroup memory, so that rows are stored whole, and with what follows from them."""
        b, ev, shape, column = self.b, self.ev, self.tile.shape, self.loops.column
        assert column is not None
        total = matrix.reduce_rows(b, "add", total)
        share = matrix.mapped(b, [total], lambda e: reciprocal(b, e[0], self.form.divisor))
        width = self.columns // 4
        stride = width + 1
        for c, result in enumerate(results):
            place = b.add(b.mul(self.own, b.idx(stride)), b.idx(c * shape.n // 4))
            matrix.store(b, self.memory, place, b.idx(stride), b.mul(result, share))
        b.barrier()
        with b.for_(self.id, self.tile.rows * width, self.tile.threads) as loop, ev.scope():
            line, vector = (b.binary(op, loop.index, b.idx(width)) for op in ("div", "rem"))
            value = b.load(self.memory, b.add(b.mul(line, b.idx(stride)), vector))
            row = b.add(self.first, line)
            with b.if_(b.compare("lt", row, ev.dim(self.extent))), ev.scope():
                ev.bind(self.lane, row)
                ev.bind(column, b.mul(vector, b.idx(4)))
                ev.vector, ev.multiple = (column[-1], 4), 4
                store_results(self.frame, self.nest, b.bitcast(value, DType.F32))


def _fold(join: Callable[[KValue, KValue], KValue], values: Sequence[KValue]) -> KValue:
    total, *rest = values
    for value in rest:
        total = join(total, value)
    return total
