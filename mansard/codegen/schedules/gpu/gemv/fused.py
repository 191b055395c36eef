"""GPU schedule of matrix-vector products with what surrounds them: a norm before, others of the same vector.

A workgroup computes the rows that its products read (`parts`), a norm say, into workgroup memory; so does
every other, which costs less than a dispatch, a barrier and a trip through memory. Its subgroups then compute
outputs of their own, a few at a time of all products, without a pause in their loads::

    fetch the first weights of my first outputs    they arrive during the norm
    x = norm(hidden)                               all invocations, into workgroup memory
    codes, scales = bytes of x                     where products take them (`rounded`)
    for block of my outputs:
        for piece of the sums:
            fetch the weights of the next piece
            sums[product, output] += x[piece] . w[product][output, piece]
        y[output] = epilogue(sum over invocations of sums)    silu(gate) * up, say
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.held_values import held_vectors
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate, power_of_two_below
from mansard.codegen.schedules.common.dequantised import dequantised_product
from mansard.codegen.schedules.common.guarded_sums import guarded_sum
from mansard.codegen.schedules.gpu.gemv.form import Form, analyse_root, chunk_of, rows_of
from mansard.codegen.schedules.gpu.gemv.grouped import Chunk, GroupedSums, add_chunks
from mansard.codegen.schedules.gpu.gemv.parts import Parts, Rounding
from mansard.codegen.schedules.gpu.gemv.rounded import RoundedRows, takes, workgroup_bytes
from mansard.codegen.schedules.gpu.gemv.sums import LANES, SUBGROUP_TYPES, GemvTile, ReducedMajor
from mansard.codegen.schedules.gpu.reduction.rows import Rows
from mansard.dtypes import DType
from mansard.ir.types import Value

WIDTH = 256
"""Invocations of a workgroup."""
MAX_ROWS = 4
"""The most rows that products read."""
MAX_BYTES = 32 << 10
"""The most workgroup memory for them."""
LOADS = 4
"""Loads of an invocation that are in flight for each product."""
MANY_COLUMNS = 4
"""Outputs of a subgroup at a time, where every subgroup of the grid has as many at least."""
Place = tuple[KValue, KValue | None]
"""The number of a chunk, and whether it is in range (None: always)."""


@dataclass(frozen=True)
class FusedTile:
    """The work of a subgroup between two steps of its loop, and how many there are."""

    columns: int
    """Outputs of each product at a time, which share what is read of the rows."""
    unroll: int
    """Chunks of an invocation whose loads are in flight together, for each output."""
    resident: int
    """The most workgroups of the grid; each computes blocks of outputs one after another."""


def default_tile(parts: Parts, target: KernelTarget) -> FusedTile:
    """Four loads of 16 bytes in flight for each product, of several outputs where many weights are in a load;
    eight, of four outputs, where these are many, as in a head (H200: 311 MB in 75 us instead of 107).

    There are somewhat more workgroups than a device runs at a time: they then end at different times, so that
    no core waits long for the last ones (H200: 201 MB in 50 us; in 58 us with two thirds of them). Weights of
    4 bits, which take less time than a launch and the norm, do without (57 MB in 29.5 us instead of 31.5).
    """
    forms = forms_of(parts.products)
    assert forms is not None
    bits = min(form.large.value.type.dtype.bits for form in forms)
    columns, subgroup = max(1, 16 // bits), target.with_one_subgroup_size().subgroup[0]
    while (
        columns > 1 and _outputs(parts.products, forms[0]) // columns * subgroup < target.resident_invocations
    ):
        columns //= 2
    workgroups = _most_workgroups(target)
    many = _outputs(parts.products, forms[0]) * subgroup >= MANY_COLUMNS * workgroups * WIDTH
    if many and columns < MANY_COLUMNS and len(forms) == rows_of(parts.products, forms[0]) == 1:
        return FusedTile(MANY_COLUMNS, 2 * LOADS // MANY_COLUMNS, workgroups)
    if bits < 8 and not many:  # as many workgroups as the device runs at a time, each with the same work
        return FusedTile(1, LOADS, max(1, target.resident_invocations // WIDTH))
    return FusedTile(columns, max(1, LOADS // columns), workgroups)


def applies(parts: Parts, target: KernelTarget) -> bool:
    """Whether there is a kernel for the parts of a dispatch on a target."""
    target = target.with_one_subgroup_size()
    lower, upper = target.subgroup
    if not target.is_gpu or lower != upper or lower < 2 or "subgroup_arithmetic" not in target.features:
        return False
    forms = forms_of(parts.products)
    if forms is None or WIDTH % lower:
        return False
    nest = parts.products
    chunks = {chunk_of(nest, form) for form in forms}
    if len(chunks) > 1 or min(chunks) % LANES or rows_of(nest, forms[0]) > MAX_ROWS:
        return False
    return _fits(parts, forms, target)


def read_again(parts: Parts, target: KernelTarget) -> int:
    """Bytes that workgroups read to compute rows that a dispatch could have stored for all of them."""
    rounding = parts.rounding.nest if parts.rounding is not None else None
    nests = [nest for nest in (parts.rows, rounding) if nest is not None]
    reads = {read.value for nest in nests for root in nest.roots for read in nest.reads(root)} - {parts.value}
    if not reads:
        return 0
    forms = forms_of(parts.products)
    assert forms is not None
    blocks = _outputs(parts.products, forms[0]) // max(
        1, WIDTH // target.with_one_subgroup_size().subgroup[0]
    )
    return min(max(1, blocks), _most_workgroups(target)) * sum(estimate(v.type.bytes) for v in reads)


def schedule(parts: Parts, target: KernelTarget, name: str) -> Scheduled:
    """The kernel of parts for which `applies` is True."""
    return _Kernel(parts, target.with_one_subgroup_size(), name, default_tile(parts, target)).run()


def _most_workgroups(target: KernelTarget) -> int:
    """Workgroups of a grid: half as many again as a device runs at a time."""
    return max(1, 3 * target.resident_invocations // WIDTH)


def _outputs(nest: Nest, form: Form) -> int:
    return estimate(nest.total([loop for g in (form.column, *form.rest) for loop in g]))


def forms_of(nest: Nest) -> list[Form] | None:
    """The forms of all products of a nest, which differ in their large operands alone; None for any other."""
    roots = [root for root in nest.roots if root.reduces]
    if any(root.inner for root in nest.roots if not root.reduces):
        return None
    forms = [form for root in roots if (form := analyse_root(nest, root)) is not None]
    if not forms or len(forms) < len(roots):
        return None
    first = forms[0]
    for form in forms:
        if not form.along or form.root.op.combiner != "add" or form.root.op.body.dtype is not DType.F32:
            return None
        if guarded_sum(nest, form.root, [loop for group in form.rest for loop in group]) is not None:
            return None  # a sum of its own ends before it begins where it is zero
        if register_dtype(form.root.op.body.dtype) not in SUBGROUP_TYPES:
            return None
        if (form.column, form.rest, form.rows) != (first.column, first.rest, first.rows):
            return None
        extents = [[nest.extents[loop] for g in f.reduced for loop in g] for f in (form, first)]
        if extents[0] != extents[1] or not all(isinstance(e, int) for e in extents[0]):
            return None
    return forms


def _fits(parts: Parts, forms: Sequence[Form], target: KernelTarget) -> bool:
    """Whether the rows, as they are and rounded, fit workgroup memory, and products read them as they lie
    there."""
    size = 0
    if parts.value is not None:
        assert parts.rows is not None
        elements, count = parts.value.type.elements, parts.rows.total(range(parts.rows.domain))
        if not isinstance(elements, int) or elements % LANES:
            return False
        if not isinstance(count, int) or count > MAX_ROWS:
            return False
        if register_dtype(parts.value.type.dtype) is not DType.F32:
            return False
        if parts.rounding is None and not _reads_vectors(parts, forms, parts.value):
            return False
        size += 4 * elements
    if parts.rounding is not None:
        codes = workgroup_bytes(parts.rounding)
        if codes is None or not _reads_codes(parts, forms, parts.rounding, target):
            return False
        size += codes
    return size <= min(MAX_BYTES, target.shared_memory_bytes // 2)


def _reads_codes(parts: Parts, forms: Sequence[Form], rounding: Rounding, target: KernelTarget) -> bool:
    """Whether each product is one of the rows' codes with small integers."""
    nest = parts.products
    if "integer_dot_product" not in target.features:
        return False
    stored = [root for root in nest.roots if not root.reduces]
    if any(r.value in (rounding.codes, rounding.scales) for root in stored for r in nest.reads(root)):
        return False
    return all(takes(dequantised_product(nest, form.root), rounding, chunk_of(nest, form)) for form in forms)


def _reads_vectors(parts: Parts, forms: Sequence[Form], value: Value) -> bool:
    """Whether products read the rows as vectors along their sums."""
    nest = parts.products
    for form in forms:
        reads = [r for r in nest.reads(form.root) if r.value is value]
        if not reads or any(r.address is None or r.guards for r in reads):
            return False
        for read in reads:
            assert read.address is not None
            terms = dict(read.address.terms)
            others = [c for loop, c in terms.items() if loop != form.inner[-1]]
            if not dims.is_one(terms.get(form.inner[-1], 0)) or read.address.offset != 0:
                return False
            if any(dims.exact_div(c, LANES) is None for c in others):
                return False
    stored = [root for root in nest.roots if not root.reduces]
    return not any(r.value is value and r.address is not None for root in stored for r in nest.reads(root))


class _Kernel:
    def __init__(self, parts: Parts, target: KernelTarget, name: str, fused: FusedTile) -> None:
        self.parts, self.nest, self.target, self.tile = parts, parts.products, target, fused
        self.size = target.subgroup[0]
        width = power_of_two_below(min(WIDTH, target.workgroup_invocations))
        self.frame = Frame(self.nest, target, name, width)
        self.b, self.ev, self.width = self.frame.b, self.frame.ev, width
        self.b.subgroup = self.size
        if parts.value is not None:
            elements = parts.value.type.elements
            assert isinstance(elements, int)
            self.ev.held[parts.value] = self.b.shared(DType.F32, held_vectors(elements // LANES), LANES)
        forms = forms_of(self.nest)
        assert forms is not None, "the schedule does not apply"
        self.rounded: RoundedRows | None = None
        if parts.rounding is not None:
            weights = forms[0].large.value.type.dtype
            self.rounded = RoundedRows(self.frame, target, parts.rounding, width, weights, LANES)
        self.lanes = LANES if self.rounded is None else 1
        """Lanes of an invocation's sums."""
        tile = GemvTile(width, self.size, fused.columns, 1, 1)
        self.products = [ReducedMajor(self.frame, form, tile) for form in forms]
        first = self.products[0]
        self.form, self.chunk, self.cells = first.form, first.chunk, first.cells
        grouped = [GroupedSums.of(self.ev, self.nest, p.root, self.chunk) for p in self.products]
        self.grouped = grouped if None not in grouped else [None] * len(grouped)
        depth = self.nest.total(self.form.root.inner)
        assert isinstance(depth, int)
        self.chunks = depth // self.chunk
        self.steps = -(-self.chunks // (self.size * fused.unroll))
        """Steps of a subgroup for a block of outputs."""
        self.rest = self.nest.total([loop for g in self.form.rest for loop in g])
        self.columns = self.nest.total(self.form.column)
        self.blocks = dims.ceildiv(self.columns, fused.columns)

    def run(self) -> Scheduled:
        """The finished kernel."""
        b, ev, subgroups = self.b, self.ev, self.width // self.size
        total = dims.mul(self.rest, self.blocks)
        workgroups = dims.minimum(
            self.frame.workgroups(dims.ceildiv(total, subgroups)), max(1, self.tile.resident)
        )
        self.lane = b.subgroup_place("subgroup_lane")
        mine = b.mul(b.workgroup_id(0), b.idx(subgroups))
        mine = b.add(mine, b.subgroup_place("subgroup_id"))
        stride = ev.dim(dims.mul(workgroups, subgroups))
        last = ev.dim(dims.add(total, -1))
        ahead = b.sub(b.add(ev.dim(total), b.sub(stride, b.idx(1))), mine)
        count = b.mul(b.binary("div", ahead, stride), b.idx(self.steps))

        def block(step: KValue) -> KValue:
            number = b.add(mine, b.mul(b.binary("div", step, b.idx(self.steps)), stride))
            return self.frame.minimum(number, last)

        with ev.scope():
            words = self._fetch(block(b.idx(0)), b.idx(0))
        self._compute_rows()
        zeros = [reduce.start(b, p.root, self.lanes) for p in self.products for _ in p.cells]
        with b.for_(b.idx(0), count, inits=[*words, *zeros]) as loop, ev.scope():
            # After the last step, what that had is fetched again, which is near.
            following = self.frame.minimum(b.add(loop.index, b.idx(1)), b.sub(count, b.idx(1)))
            with ev.scope():
                after = self._fetch(block(following), self._within(following))
            here, within = block(loop.index), self._within(loop.index)
            with ev.scope():
                sums = self._accumulate(here, within, loop.carried[: len(words)], loop.carried[len(words) :])
            done = b.compare("eq", within, b.idx(self.steps - 1))
            with b.if_(done), ev.scope():
                self._store(here, sums)
            kept = [b.select(b.splat(done, self.lanes), zero, v) for zero, v in zip(zeros, sums, strict=True)]
            loop.yield_(*after, *kept)
        return self.frame.finish((workgroups, 1, 1))

    def _within(self, step: KValue) -> KValue:
        return self.b.binary("rem", step, self.b.idx(self.steps))

    def _bind_block(self, number: KValue) -> KValue:
        """Bind the outermost loops of a block; its first column."""
        rest, column = self.frame.decode(number, (self.rest, self.blocks))
        if self.form.rest:
            self.frame.bind_flat(self.form.rest, rest)
        return self.b.mul(column, self.b.idx(self.tile.columns))

    def _compute_rows(self) -> None:
        """Every workgroup computes the rows that the products read."""
        if self.parts.rows is not None:
            rows = Rows(self.parts.rows, self.target, "", self.frame, self.width)
            rows.ev.held = self.ev.held
            rows.compute()
            self.b.barrier()
        if self.rounded is not None:
            self.rounded.compute()
            self.b.barrier()

    # Sums -------------------------------------------------------------------------------------
    def _places(self, step: KValue) -> list[Place]:
        """An invocation's chunks of a step, and whether they are in range where some are not."""
        b, size, unroll = self.b, self.size, self.tile.unroll
        ragged, places = self.chunks % (size * unroll) != 0, []
        for number in range(unroll):
            at = b.add(b.mul(step, b.idx(unroll)), b.idx(number))
            place = b.add(b.mul(at, b.idx(size)), self.lane)
            inside = b.compare("lt", place, b.idx(self.chunks)) if ragged else None
            places.append((self.frame.minimum(place, b.idx(self.chunks - 1)) if ragged else place, inside))
        return places

    def _chunk(self, place: KValue) -> Sequence[KValue]:
        """The coordinates of a chunk, the same for all products: they then share what they read there."""
        extents = [self.nest.total(group) for group in self.form.reduced]
        return self.frame.decode(self.b.mul(place, self.b.idx(self.chunk)), extents)

    def _bind(
        self, product: ReducedMajor, chunk: Sequence[KValue], row: int, column: int, first: KValue
    ) -> KValue:
        """Bind the loops of a product to a chunk of a cell; the value of the innermost loop there."""
        for group, value in zip(product.form.reduced, chunk, strict=True):
            self.ev.bind(group, value)
        product.bind(row, column, first)
        return chunk[-1]

    def _fetch(self, block: KValue, step: KValue) -> list[KValue]:
        """The loads of a step."""
        first, loaded = self._bind_block(block), []
        chunks = [self._chunk(place) for place, _ in self._places(step)]
        for product, grouped in zip(self.products, self.grouped, strict=True):
            product.vector_loads.begin()
            factors: list[KValue] = []
            for chunk in chunks:
                for row, column in product.cells:
                    product.vector_loads.fetch(self._bind(product, chunk, row, column, first))
                    if grouped is not None and row == 0:
                        factors += grouped.factors()
            loaded += [*product.vector_loads.fetched(), *factors]
        return loaded

    def _accumulate(
        self, block: KValue, step: KValue, loaded: Sequence[KValue], sums: Sequence[KValue]
    ) -> list[KValue]:
        """The sums of all products and cells with those of a step, whose loads these are."""
        first, places, rest = self._bind_block(block), self._places(step), iter(loaded)
        chunks = [self._chunk(place) for place, _ in places]
        factors: list[list[list[KValue]]] = []
        for product, grouped in zip(self.products, self.grouped, strict=True):
            product.vector_loads.begin()
            for chunk in chunks:
                for row, column in product.cells:
                    product.vector_loads.restore(self._bind(product, chunk, row, column, first), rest)
            of_outputs = len(places) * self.tile.columns
            size = len(grouped.nodes) if grouped is not None else 0
            factors.append([[next(rest) for _ in range(size)] for _ in range(of_outputs)])
        totals = list(sums)
        for number, (chunk, (_, inside)) in enumerate(zip(chunks, places, strict=True)):
            scales = [of_product[number * self.tile.columns :] for of_product in factors]
            after = self._add(chunk, first, scales, totals)
            if inside is not None:
                chosen = self.b.splat(inside, self.lanes)
                after = [self.b.select(chosen, v, old) for v, old in zip(after, totals, strict=True)]
            totals = after
        return totals

    def _add(
        self,
        chunk: Sequence[KValue],
        first: KValue,
        factors: Sequence[Sequence[Sequence[KValue]]],
        totals: Sequence[KValue],
    ) -> list[KValue]:
        """The totals of all products and cells with a chunk each."""
        cells = [(number, *cell) for number, p in enumerate(self.products) for cell in p.cells]
        if self.grouped[0] is not None:
            parts = []
            for (number, row, column), total in zip(cells, totals, strict=True):
                grouped, product = self.grouped[number], self.products[number]
                assert grouped is not None
                bind = functools.partial(self._bind, product, chunk, row, column, first)
                parts.append(Chunk(grouped, product.vector_loads, bind, factors[number][column], total))
            if self.rounded is not None:
                return [self.rounded.add(part) for part in parts]
            return add_chunks(parts, LANES)
        after = list(totals)
        for element in range(0, self.chunk, LANES):
            for at, (number, row, column) in enumerate(cells):
                product = self.products[number]
                start = self._bind(product, chunk, row, column, first)
                product.vector_loads.serve(start, element, LANES)
                after[at] = reduce.combine(self.ev, product.root, after[at])
                self.ev.vector = None
        return after

    # Results ----------------------------------------------------------------------------------
    def _store(self, block: KValue, sums: Sequence[KValue]) -> None:
        """Add the sums of a subgroup's invocations, and store the outputs of each cell by one of them."""
        b, ev, cells = self.b, self.ev, len(self.cells)
        first = self._bind_block(block)
        totals = [b.subgroup_reduce("add", b.reduce("add", v)) for v in sums]
        with b.for_(self.lane, b.idx(cells), b.idx(self.size)) as loop, ev.scope():
            ev.vector = None
            row = b.binary("div", loop.index, b.idx(self.tile.columns))
            column = b.add(first, b.binary("rem", loop.index, b.idx(self.tile.columns)))
            inside = b.compare("lt", column, ev.dim(self.columns))
            with b.if_(inside) if not self.products[0].exact else nullcontext(), ev.scope():
                if self.form.rows:
                    self.frame.bind_flat(self.form.rows, row)
                ev.bind(self.form.column, column)
                whole = {}
                for number, product in enumerate(self.products):
                    own = totals[number * cells : (number + 1) * cells]
                    total = own[0]
                    for cell, value in enumerate(own[1:], 1):
                        total = b.select(b.compare("eq", loop.index, b.idx(cell)), value, total)
                    whole[product.root] = total
                self.frame.store_all(whole)
