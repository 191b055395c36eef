"""GPU schedule of attention with cooperative matrices: a subgroup keeps all data of its rows in registers.

Dao, "FlashAttention-2" (2023), with cooperative matrices. Keys and values of a block are in workgroup memory
in the layout of their buffers; every subgroup multiplies its rows with all of them. Scores never leave the
registers: a row is first reduced over its matrices element by element, then once over invocations, and
exponentials are converted to factors of the second product in place. The loads of the next keys and values
are in flight meanwhile.

Cooperative matrices do not expose which elements an invocation holds. Where masks need the positions, a
matrix of element numbers is loaded from memory; blocks of keys that are visible to every row of a tile need
none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mansard import dims
from mansard.codegen.kernel import KValue, matrix
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.schedules.common.attention_nest import (
    AttentionLoops,
    AttentionNest,
    Group,
    classify,
    distribute,
    needs_place,
)
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides
from mansard.codegen.schedules.common.key_bounds import key_bounds, last_bound, tile_bound, without_bounds
from mansard.codegen.schedules.common.online_softmax import (
    LOG2_E,
    LOWEST,
    divided,
    exp_native,
    reciprocal,
    store_results,
)
from mansard.codegen.schedules.gpu.attention.exchange import Exchange
from mansard.codegen.schedules.gpu.attention.matrix_tiles import (
    PIECE,
    AttentionMatrixTile,
    AttentionOperand,
    operands,
)
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.ops import Generic, Reshape
from mansard.ir.scalar import Apply, Arg, Const


def scale_of_scores(nest: AttentionNest, special: Mapping[Generic, Generic]) -> float | None:
    """The positive literal by which scores are multiplied before the softmax, if that is the only map."""
    factor = 1.0
    op = nest.producers[nest.form.masked]
    while op is not nest.form.scores:
        if not isinstance(op, Generic):
            return None
        body = special.get(op, op).body
        if isinstance(body, Apply) and body.op == "mul" and isinstance(body.args[1], Const):
            factor *= float(body.args[1].value)
            body = body.args[0]
        if not isinstance(body, Arg) or body.dtype is not DType.F32:
            return None
        value = op.inputs[body.index]
        while isinstance(source := nest.producers[value], Reshape):
            value = source.inputs[0]
        op = source
    return factor if factor > 0 else None


def schedule(nest: AttentionNest, target: KernelTarget, name: str, tile: AttentionMatrixTile) -> Scheduled:
    """The kernel of an attention; a workgroup computes tiles of query rows of one head, each over all
    keys."""
    loops = classify(nest)
    work = distribute(nest, loops)
    frame = Frame(nest, target, name, tile.threads)
    b, ev = frame.b, frame.ev
    tiles = dims.ceildiv(nest.total([d for g in work.rows for d in g]), tile.rows)
    counts = (nest.total([d for g in work.rest for d in g]), tiles)
    total = dims.product(counts)
    workgroups = frame.workgroups(total)
    flash = _MatrixFlash(frame, nest, loops, work.rows, tile)
    with b.for_(b.workgroup_id(0), ev.dim(total), ev.dim(workgroups)) as loop, ev.scope():
        head, number = frame.decode(loop.index, counts)
        if work.rest:
            frame.bind_flat(work.rest, head)
        # With a causal mask the last rows take longest, so they are started first.
        number = b.sub(ev.dim(dims.add(tiles, -1)), number)
        flash.run(b.mul(number, b.idx(tile.rows)))
    return frame.finish((workgroups, 1, 1))


class _MatrixFlash:
    def __init__(
        self,
        frame: Frame,
        nest: AttentionNest,
        loops: AttentionLoops,
        groups: Sequence[Group],
        tile: AttentionMatrixTile,
    ) -> None:
        self.frame, self.nest, self.loops, self.groups, self.tile = frame, nest, loops, list(groups), tile
        self.b, self.ev, self.form = frame.b, frame.ev, nest.form
        operand_triple = operands(nest, loops)
        assert operand_triple is not None
        self.query, self.key, self.value = operand_triple
        self.dtype = self.query.value.type.dtype
        self.extent: DimLike = nest.total([d for g in groups for d in g])
        self.length = nest.extents[nest.key_loop]
        self.exact = divides(self.length, tile.keys)
        self.depth, self.columns = nest.depth_and_columns()
        b, shape = self.b, tile.shape
        b.subgroup = frame.target.subgroup[0]
        self.sums = matrix.c_type(DType.F32, shape.m, shape.n)
        self.left = matrix.a_type(self.dtype, shape.m, shape.k)
        self.exchange = Exchange(b, frame.target, shape, tile.keys, tile.subgroups)
        self.right = matrix.b_type(self.dtype, shape.k, shape.n)
        self.key_stride, self.value_stride = self.depth // PIECE + 1, self.columns // PIECE + 1
        self.values_at = tile.keys * self.key_stride
        self.memory = b.shared(DType.I32, tile.shared_pieces(self.depth, self.columns), 4)
        self.id = b.local_id(0)
        self.subgroup_row = b.mul(b.subgroup_place("subgroup_id"), b.idx(shape.m))  # the subgroup's first row
        self.seen = without_bounds(nest)
        self.scaled = scale_of_scores(nest, self.seen)
        self.places = self._places()

    def _places(self) -> KValue | None:
        """A matrix whose elements are their row-major numbers."""
        b, shape, size = self.b, self.tile.shape, self.tile.shape.m * self.tile.shape.n
        if self.exact and not needs_place(self.nest, {}):
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
        keys, whole = self._key_bounds()
        self._store_pieces(0, self.key_stride, self._read(self.key, b.idx(0), self.exact))
        b.barrier()
        zero, lowest = matrix.fill(b, self.sums), matrix.fill(b, self.sums, LOWEST)
        state: Sequence[KValue] = [lowest, zero, *([zero] * (self.columns // tile.shape.n))]
        visible = None if self.exact and not key_bounds(self.nest) else whole
        # One loop for all blocks: a driver takes a second to compile one (NVIDIA 580).
        with b.for_(b.idx(0), keys, b.idx(tile.keys), inits=state) as loop, self.ev.scope():
            loop.yield_(*self._block(loop.index, queries, loop.carried, visible))
        state = loop.results
        self._finish(state[0], state[1], state[2:])

    def _bind_row(self, row: KValue, shift: int = 0) -> None:
        if len(self.groups) == 1:
            self.ev.bind(self.groups[0], row, shift)
        elif self.groups:
            self.frame.bind_flat(self.groups, self.b.add(row, self.b.idx(shift)))

    def _queries(self) -> list[KValue]:
        """The subgroup's rows as left factors, through workgroup memory."""
        b, shape = self.b, self.tile.shape
        stride = self.key_stride
        b.barrier()  # the previous results have been read
        inside = divides(self.extent, self.tile.rows)
        self._store_pieces(0, stride, self._read(self.query, self.first, inside, rows=self.tile.rows))
        b.barrier()
        base = b.mul(self.subgroup_row, b.idx(stride))
        matrices_loaded = [
            matrix.load(b, self.left, self.memory, b.add(base, b.idx(d // PIECE)), b.idx(stride))
            for d in range(0, self.depth, shape.k)
        ]
        b.barrier()
        return matrices_loaded

    def _key_bounds(self) -> tuple[KValue, KValue]:
        """The end of the keys of any row, and the end of the whole blocks that are visible to all rows."""
        b, ev, tile = self.b, self.ev, self.tile
        last = self.frame.minimum(b.add(self.first, b.idx(tile.rows - 1)), ev.dim(dims.add(self.extent, -1)))
        keys = whole = ev.dim(self.length)
        lane = self.loops.lane
        along = lane is not None and self.groups == [lane]
        for end in key_bounds(self.nest):
            at_first = last_bound(self.frame, self.nest, end, lane, self.first if along else b.idx(0))
            at_last = tile_bound(self.frame, self.nest, end, lane, along, last)
            if at_first is None or at_last is None:
                whole = b.idx(0)
                continue
            keys = b.binary("max", self.frame.minimum(keys, at_last), b.idx(0))
            whole = b.binary("max", self.frame.minimum(whole, at_first), b.idx(0))
        whole = b.mul(b.binary("div", whole, b.idx(tile.keys)), b.idx(tile.keys))
        return keys, whole

    # Workgroup memory -----------------------------------------------------------------------
    def _read_next(self, first: KValue) -> list[tuple[KValue, KValue, KValue]]:
        """Load the keys of the block after the one at ``first``; of an arbitrary block if there is none."""
        b, size = self.b, self.tile.keys
        following = b.add(first, b.idx(size))
        if self.exact:
            following = self.frame.minimum(following, self.ev.dim(dims.add(self.length, -size)))
        return self._read(self.key, following, self.exact)

    def _read(
        self, operand: AttentionOperand, first: KValue, inside: bool, rows: int = 0
    ) -> list[tuple[KValue, KValue, KValue]]:
        """An invocation's pieces of some rows of an operand (query rows, or the keys of a block), with their
        rows and positions in these. Unless all are ``inside``, rows beyond the last repeat it, except that
        values there are 0."""
        b, ev, nest = self.b, self.ev, self.nest
        lines = rows or self.tile.keys
        extent = self.extent if rows else self.length
        width = nest.total(operand.group)
        assert isinstance(width, int)
        out = []
        for line, shift, piece in self._distribute(lines, width // PIECE):
            place = b.add(first, line)
            near = place
            if not inside:
                place, shift = b.add(place, b.idx(shift)), 0
                near = self.frame.minimum(place, ev.dim(dims.add(extent, -1)))
            with ev.scope():
                if rows:
                    self._bind_row(near, shift)
                else:
                    ev.bind([nest.key_loop], near, shift)
                ev.bind(operand.group, b.mul(piece, b.idx(PIECE)))
                address, _ = ev.linear(operand.address)
                there = self._in_range(operand)
            if there is not None:
                address = b.select(there, address, b.idx(0))
            if not inside:
                counts = b.compare("lt", place, ev.dim(extent))
                there = counts if there is None else b.binary("and", there, counts)
            words = b.load_words(b.bindings[ev.binding_of[operand.value]], address, 4)
            if operand is self.value and there is not None:  # scores of keys there are masked
                words = b.select(b.splat(there, 4), words, b.const(0, DType.I32, 4))
            out.append((b.add(line, b.idx(shift)) if inside else b.sub(place, first), piece, words))
        return out

    def _in_range(self, operand: AttentionOperand) -> KValue | None:
        """Whether an operand is in range at the bound loops; None: always."""
        b, ev = self.b, self.ev
        there: KValue | None = None
        for at, extent in operand.guards:
            place, _ = ev.linear(at)
            for test in (b.compare("ge", place, b.idx(0)), b.compare("lt", place, ev.dim(extent))):
                there = test if there is None else b.binary("and", there, test)
        return there

    def _distribute(self, lines: int, pieces: int) -> list[tuple[KValue, int, KValue]]:
        """The pieces of an invocation: their rows minus static offsets, the offsets, and the positions in the
        rows."""
        b, threads, size = self.b, self.tile.threads, lines * pieces
        if threads % pieces == 0 and size % threads == 0:
            line, piece = (b.binary(op, self.id, b.idx(pieces)) for op in ("div", "rem"))
            return [(line, n * threads // pieces, piece) for n in range(size // threads)]
        out = []
        for number in range(-(-size // threads)):
            element = b.add(self.id, b.idx(number * threads))
            if size % threads:
                element = self.frame.minimum(element, b.idx(size - 1))
            out.append((b.binary("div", element, b.idx(pieces)), 0, b.binary("rem", element, b.idx(pieces))))
        return out

    def _store_pieces(self, base: int, stride: int, pieces: Sequence[tuple[KValue, KValue, KValue]]) -> None:
        b = self.b
        for line, piece, words in pieces:
            b.store(self.memory, b.add(b.add(b.mul(line, b.idx(stride)), piece), b.idx(base)), words)

    # A block of keys ------------------------------------------------------------------------
    def _block(
        self, first: KValue, queries: Sequence[KValue], state: Sequence[KValue], visible: KValue | None
    ) -> list[KValue]:
        """Process a block whose keys are in workgroup memory, and store those of the next block there. Keys
        before ``visible`` (None: all) are visible to all rows."""
        b = self.b
        top, total, *results = state
        values = self._read(self.value, first, visible is None or self.exact)
        scores = self._visible(first, self._scores(queries), visible)
        top, scale, powers = self._softmax(top, scores)
        total = matrix.mapped(b, [total, scale, *powers], lambda e: _fold(b.add, [b.mul(e[0], e[1]), *e[2:]]))
        results = [b.mul(r, scale) for r in results]
        weights = self.exchange.as_factors(powers)
        self._store_pieces(self.values_at, self.value_stride, values)
        keys = self._read_next(first)
        b.barrier()
        results = self._accumulate(weights, results)
        self._store_pieces(0, self.key_stride, keys)
        b.barrier()
        return [top, total, *results]

    def _scores(self, queries: Sequence[KValue]) -> list[KValue]:
        b, shape, stride = self.b, self.tile.shape, self.key_stride
        sums = [matrix.fill(b, self.sums) for _ in range(self.tile.keys // shape.n)]
        for d, query in enumerate(queries):
            for n in range(len(sums)):
                place = b.idx(n * shape.n * stride + d * shape.k // PIECE)
                key = matrix.load(b, self.right, self.memory, place, b.idx(stride), by="columns")
                sums[n] = matrix.multiply(b, query, key, sums[n])
        return sums

    def _visible(self, first: KValue, scores: Sequence[KValue], visible: KValue | None) -> list[KValue]:
        """Apply the maps between scores and softmax to the scores of a block, but for the multiplication by
        ``self.scaled``."""
        b, scaled = self.b, self.scaled is not None
        if visible is None:
            return list(scores) if scaled else self._mapped(first, scores, True)
        partly = b.select(b.compare("lt", first, visible), b.idx(0), b.idx(1))
        if not scaled:
            with b.for_(partly, b.idx(1), b.idx(1), inits=scores) as loop, self.ev.scope():
                loop.yield_(*self._mapped(first, loop.carried, True))
            scores = loop.results
        with b.for_(b.idx(0), partly, b.idx(1), inits=scores) as loop, self.ev.scope():
            masked = self._mapped(first, loop.carried, False)
            if scaled:  # what is not hidden is the score times the literal
                pairs = zip(masked, loop.carried, strict=True)
                masked = [matrix.mapped(b, pair, lambda e: self._unscaled(e[0], e[1])) for pair in pairs]
            loop.yield_(*masked)
        return list(loop.results)

    def _unscaled(self, masked: KValue, score: KValue) -> KValue:
        hidden = self.b.const(float("-inf"), DType.F32)
        return self.b.select(self.b.compare("eq", masked, hidden), hidden, score)

    def _mapped(self, first: KValue, scores: Sequence[KValue], seen: bool) -> list[KValue]:
        """Apply the maps between scores and softmax; keys beyond the last are masked, unless all are visible
        (``seen``)."""
        b, shape = self.b, self.tile.shape
        special = self.seen if seen else {}
        hides = not seen and not self.exact
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
            row = b.add(b.add(self.first, self.subgroup_row), b.binary("div", number, b.idx(shape.n)))
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
                self._bind_row(place[0])
                ev.bind([self.nest.key_loop], place[1])
            else:  # unused by the evaluated maps
                self._bind_row(self.b.idx(0))
                ev.bind([self.nest.key_loop], self.b.idx(0))
            ev.specialised = special
            ev.reduced[self.form.scores] = score
            value = ev.value(self.form.masked, self.nest.masked_index())
            ev.specialised = {}
        return value

    def _softmax(self, before: KValue, scores: Sequence[KValue]) -> tuple[KValue, KValue, list[KValue]]:
        """New maxima of the rows, scales of the previous sums, and exponentials. Scores are multiplied by
        ``self.scaled`` here, which is free as part of the exponentials' arithmetic."""
        b, factor = self.b, self.scaled
        local = matrix.mapped(b, scores, lambda e: _fold(b.larger, e))
        rows = self.exchange.reduce_rows("max", local)
        if factor is None:
            top = matrix.mapped(b, [before, rows], lambda e: b.larger(e[0], e[1]))
            scale = matrix.mapped(b, [before, top], lambda e: self._power(e[0], e[1]))
            return top, scale, [matrix.mapped(b, [s, top], lambda e: self._power(e[0], e[1])) for s in scores]
        times, doubling = b.const(factor, DType.F32), b.const(factor * LOG2_E, DType.F32)
        top = matrix.mapped(b, [before, rows], lambda e: b.larger(e[0], b.mul(e[1], times)))
        scale = matrix.mapped(b, [before, top], lambda e: self._power(e[0], e[1]))
        shift = matrix.mapped(b, [top], lambda e: b.mul(e[0], b.const(-LOG2_E, DType.F32)))

        def power(elements: Sequence[KValue]) -> KValue:
            return b.unary("exp2_native", b.fma(elements[0], doubling, elements[1]))

        return top, scale, [matrix.mapped(b, [s, shift], power) for s in scores]

    def _power(self, value: KValue, top: KValue) -> KValue:
        return exp_native(self.b, self.b.sub(value, top))

    def _accumulate(self, weights: Sequence[KValue], results: Sequence[KValue]) -> list[KValue]:
        b, shape, stride = self.b, self.tile.shape, self.value_stride
        sums = list(results)
        for n, weight in enumerate(weights):
            for c in range(len(sums)):
                place = b.idx(self.values_at + n * shape.k * stride + c * shape.n // PIECE)
                value = matrix.load(b, self.right, self.memory, place, b.idx(stride))
                sums[c] = matrix.multiply(b, weight, value, sums[c])
        return sums

    # The result -----------------------------------------------------------------------------
    def _finish(self, top: KValue, total: KValue, results: Sequence[KValue]) -> None:
        """Store the results through workgroup memory, in whole rows, after the epilogue."""
        b, ev, shape, column = self.b, self.ev, self.tile.shape, self.loops.column
        assert column is not None
        total = self.exchange.reduce_rows("add", total)
        if self.form.partial is not None:
            self._store_statistics(top, total)
        else:
            share = matrix.mapped(b, [total], lambda e: reciprocal(self.frame, self.nest, e[0]))
            results = [self._divided(result, share, total) for result in results]
        width = self.columns // 4
        stride = width + 1
        for c, result in enumerate(results):
            place = b.add(b.mul(self.subgroup_row, b.idx(stride)), b.idx(c * shape.n // 4))
            matrix.store(b, self.memory, place, b.idx(stride), result)
        b.barrier()
        with b.for_(self.id, self.tile.rows * width, self.tile.threads) as loop, ev.scope():
            line, vector = (b.binary(op, loop.index, b.idx(width)) for op in ("div", "rem"))
            value = b.load(self.memory, b.add(b.mul(line, b.idx(stride)), vector))
            row = b.add(self.first, line)
            with b.if_(b.compare("lt", row, ev.dim(self.extent))), ev.scope():
                self._bind_row(row)
                ev.bind(column, b.mul(vector, b.idx(4)))
                ev.vector, ev.multiple = (column[-1], 4), 4
                store_results(self.frame, self.nest, b.bitcast(value, DType.F32))

    def _divided(self, result: KValue, share: KValue, total: KValue) -> KValue:
        if not self.form.guarded:
            return self.b.mul(result, share)
        parts = [result, share, total]
        return matrix.mapped(self.b, parts, lambda e: divided(self.b, self.nest, e[0], e[1], e[2]))

    def _store_statistics(self, top: KValue, total: KValue) -> None:
        """Store the maxima and sums of the rows if the form has them as results."""
        b, ev, shape = self.b, self.ev, self.tile.shape
        assert self.form.partial is not None
        (top_op, _), _ = self.form.partial
        stride = shape.n // 4
        for root in self.nest.statistics:
            value = top if root.op is top_op else total
            matrix.store(b, self.memory, b.mul(self.subgroup_row, b.idx(stride)), b.idx(stride), value)
            b.barrier()
            with b.for_(self.id, self.tile.rows, self.tile.threads) as loop, ev.scope():
                row = b.add(self.first, loop.index)
                words = b.load(self.memory, b.mul(loop.index, b.idx(stride)))
                with b.if_(b.compare("lt", row, ev.dim(self.extent))), ev.scope():
                    self._bind_row(row)
                    statistic = b.extract(b.bitcast(words, DType.F32), 0)
                    ev.store(root.op.output, self.nest.store_address(root), statistic)
            b.barrier()


def _fold(join: Callable[[KValue, KValue], KValue], values: Sequence[KValue]) -> KValue:
    total, *rest = values
    for value in rest:
        total = join(total, value)
    return total
