"""GPU schedule of matrix-vector products with what surrounds them: a norm before, others of the same vector.

A workgroup computes the rows that its products read (`parts`), a norm say, into workgroup memory; so does
every other, which costs less than a dispatch, a barrier and a trip through memory. Its subgroups then compute
outputs of their own, all products at once::

    fetch the weights of my outputs            where they fit the registers: they arrive during the norm
    x = norm(hidden)                           all invocations, into workgroup memory
    for product in products:
        sums[product] = sum over invocations of x . w[product][output]
    y[output] = epilogue(sums)                 silu(gate) * up, say
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate, power_of_two_below
from mansard.codegen.schedules.gpu.gemv.form import Form, analyse_root, chunk_of, rows_of
from mansard.codegen.schedules.gpu.gemv.parts import Parts
from mansard.codegen.schedules.gpu.gemv.sums import LANES, SUBGROUP_TYPES, GemvTile, ReducedMajor
from mansard.codegen.schedules.gpu.reduction.rows import Rows
from mansard.dims import DimLike
from mansard.dtypes import DType

WIDTH = 256
"""Invocations of a workgroup."""
MAX_ROWS = 4
"""The most rows that products read."""
MAX_BYTES = 32 << 10
"""The most workgroup memory for them."""
FETCHED_WORDS = 64
"""The most registers for weights that are fetched before the rows are computed."""
UNROLL = 4
"""Chunks of an invocation whose loads are in flight together, where registers do not hold all of them."""
Place = tuple[KValue, KValue | None]
"""The number of a chunk, and whether it is in range (None: always)."""


def applies(parts: Parts, target: KernelTarget) -> bool:
    """Whether there is a kernel for the parts of a dispatch on a target."""
    target = target.with_one_subgroup_size()
    lower, upper = target.subgroup
    if not target.is_gpu or lower != upper or lower < 2 or "subgroup_arithmetic" not in target.features:
        return False
    forms = _forms(parts.products)
    if forms is None or WIDTH % lower:
        return False
    nest = parts.products
    chunks = {chunk_of(nest, form) for form in forms}
    if len(chunks) > 1 or min(chunks) % LANES or rows_of(nest, forms[0]) > MAX_ROWS:
        return False
    return parts.rows is None or _fits(parts, forms, target)


def read_again(parts: Parts, target: KernelTarget) -> int:
    """Bytes that workgroups read to compute rows that a dispatch could have stored for all of them."""
    if parts.rows is None:
        return 0
    reads = {read.value for root in parts.rows.roots for read in parts.rows.reads(root)}
    forms = _forms(parts.products)
    assert forms is not None
    blocks = _outputs(parts.products, forms[0]) // max(
        1, WIDTH // target.with_one_subgroup_size().subgroup[0]
    )
    return min(max(1, blocks), _resident(target)) * sum(estimate(v.type.bytes) for v in reads)


def schedule(parts: Parts, target: KernelTarget, name: str) -> Scheduled:
    """The kernel of parts for which `applies` is True."""
    return _Kernel(parts, target.with_one_subgroup_size(), name).run()


def _resident(target: KernelTarget) -> int:
    """Workgroups that a device runs at a time."""
    return max(1, 2 * target.resident_invocations // WIDTH)


def _outputs(nest: Nest, form: Form) -> int:
    return estimate(nest.total([loop for g in (form.column, *form.rest) for loop in g]))


def _forms(nest: Nest) -> list[Form] | None:
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
        if register_dtype(form.root.op.body.dtype) not in SUBGROUP_TYPES:
            return None
        if (form.column, form.rest, form.rows) != (first.column, first.rest, first.rows):
            return None
        extents = [[nest.extents[loop] for g in f.reduced for loop in g] for f in (form, first)]
        if extents[0] != extents[1] or not all(isinstance(e, int) for e in extents[0]):
            return None
    return forms


def _fits(parts: Parts, forms: Sequence[Form], target: KernelTarget) -> bool:
    """Whether products read the rows as vectors along their sums, from what fits workgroup memory."""
    nest, value, rows = parts.products, parts.value, parts.rows
    assert value is not None and rows is not None
    size = value.type.elements
    count = rows.total(range(rows.domain))
    if not isinstance(size, int) or size % LANES or not isinstance(count, int) or count > MAX_ROWS:
        return False
    if size * 4 > min(MAX_BYTES, target.shared_memory_bytes // 2):
        return False
    if register_dtype(value.type.dtype) is not DType.F32:
        return False
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
    return not any(r.value is value for root in stored for r in nest.reads(root))


class _Kernel:
    def __init__(self, parts: Parts, target: KernelTarget, name: str) -> None:
        self.parts, self.nest, self.target = parts, parts.products, target
        self.size = target.subgroup[0]
        width = power_of_two_below(min(WIDTH, target.workgroup_invocations))
        self.frame = Frame(self.nest, target, name, width)
        self.b, self.ev, self.width = self.frame.b, self.frame.ev, width
        self.b.subgroup = self.size
        if parts.value is not None:
            elements = parts.value.type.elements
            assert isinstance(elements, int)
            self.ev.held[parts.value] = self.b.shared(DType.F32, elements // LANES, LANES)
        forms = _forms(self.nest)
        assert forms is not None, "the schedule does not apply"
        tile = GemvTile(width, self.size, 1, 1, 1)
        self.products = [ReducedMajor(self.frame, form, tile) for form in forms]
        first = self.products[0]
        self.form, self.chunk, self.cells = first.form, first.chunk, first.cells
        depth = self.nest.total(self.form.root.inner)
        assert isinstance(depth, int)
        self.steps = depth // self.chunk
        self.share, self.whole = -(-self.steps // self.size), self.steps // self.size
        """Chunks of an invocation, and those that all invocations have."""

    def run(self) -> Scheduled:
        """The finished kernel: every subgroup has an output, or several one after the other."""
        rest = self.nest.total([loop for g in self.form.rest for loop in g])
        counts = (rest, self.nest.total(self.form.column))
        total, subgroups = dims.product(counts), self.width // self.size
        workgroups = dims.ceildiv(total, subgroups)
        b, ev = self.b, self.ev
        self.lane = b.subgroup_place("subgroup_lane")
        mine = b.mul(b.workgroup_id(0), b.idx(subgroups))
        mine = b.add(mine, b.subgroup_place("subgroup_id"))
        if self._is_single(workgroups):
            inside = b.compare("lt", mine, ev.dim(total))
            first = self._bind_output(self.frame.minimum(mine, ev.dim(dims.add(total, -1))), counts)
            places = [self._place(b.idx(n), n + 1 > self.whole) for n in range(self.share)]
            for product in self.products:
                self._fetch(product, places, first)
            self._compute_rows()
            sums = [
                self._accumulate(product, places, first, self._zeros(product)) for product in self.products
            ]
            self._store(first, sums, inside)
            return self.frame.finish((workgroups, 1, 1))
        workgroups = dims.minimum(self.frame.workgroups(workgroups), _resident(self.target))
        self._compute_rows()
        stride = ev.dim(dims.mul(workgroups, subgroups))
        with b.for_(mine, ev.dim(total), stride) as loop, ev.scope():
            first = self._bind_output(loop.index, counts)
            sums = [self._loop(product, first) for product in self.products]
            self._store(first, sums, None)
        return self.frame.finish((workgroups, 1, 1))

    def _is_single(self, workgroups: DimLike) -> bool:
        """Whether every subgroup has one output, whose weights fit its registers."""
        words = self.share * sum(p.chunk * p.form.large.value.type.dtype.bits // 32 for p in self.products)
        return dims.bounds(workgroups)[1] <= 2 * _resident(self.target) and words <= FETCHED_WORDS

    def _bind_output(self, number: KValue, counts: Sequence[DimLike]) -> KValue:
        rest, column = self.frame.decode(number, counts)
        if self.form.rest:
            self.frame.bind_flat(self.form.rest, rest)
        return column

    def _compute_rows(self) -> None:
        """Every workgroup computes the rows that the products read."""
        nest, value = self.parts.rows, self.parts.value
        if nest is None or value is None:
            return
        rows = Rows(nest, self.target, "", self.frame, self.width)
        rows.ev.held = self.ev.held
        rows.compute()
        self.b.barrier()

    # Sums -------------------------------------------------------------------------------------
    def _place(self, number: KValue, ragged: bool) -> Place:
        """An invocation's chunk by its number, and whether it is in range where that is not ``ragged``."""
        b = self.b
        place = b.add(b.mul(number, b.idx(self.size)), self.lane)
        if not ragged:
            return place, None
        return self.frame.minimum(place, b.idx(self.steps - 1)), b.compare("lt", place, b.idx(self.steps))

    def _zeros(self, product: ReducedMajor) -> list[KValue]:
        return [reduce.start(self.b, product.root, LANES) for _ in self.cells]

    def _start(self, product: ReducedMajor, place: KValue) -> KValue:
        """Bind a product's sum to a chunk; the value of the innermost loop there."""
        self.frame.bind_flat(product.form.reduced, self.b.mul(place, self.b.idx(self.chunk)))
        return self.ev.loops[product.form.inner[-1]]

    def _fetch(self, product: ReducedMajor, places: Sequence[Place], first: KValue) -> None:
        for place, _ in places:
            start = self._start(product, place)
            for row, column in self.cells:
                product.bind(row, column, first)
                product.vector_loads.fetch(start)

    def _accumulate(
        self, product: ReducedMajor, places: Sequence[Place], first: KValue, sums: Sequence[KValue]
    ) -> list[KValue]:
        """The sums with the products of some chunks."""
        b, ev, totals = self.b, self.ev, list(sums)
        for place, inside in places:
            start = self._start(product, place)
            for element in range(0, self.chunk, LANES):
                for cell, (row, column) in enumerate(self.cells):
                    product.bind(row, column, first)
                    product.vector_loads.serve(start, element, LANES)
                    after = reduce.combine(ev, product.root, totals[cell])
                    if inside is not None:
                        after = b.select(b.splat(inside, LANES), after, totals[cell])
                    totals[cell] = after
                    ev.vector = None
        return totals

    def _loop(self, product: ReducedMajor, first: KValue) -> list[KValue]:
        """The sums of an output, some chunks of an invocation at a time."""
        b = self.b
        unroll = next(u for u in (UNROLL, 2, 1) if not self.whole % u)
        sums: Sequence[KValue] = self._zeros(product)

        def some(places: Sequence[Place], carried: Sequence[KValue]) -> list[KValue]:
            product.vector_loads.begin()
            self._fetch(product, places, first)
            return self._accumulate(product, places, first, carried)

        if self.whole:
            with b.for_(0, self.whole, unroll, inits=sums) as loop, self.ev.scope():
                places = [self._place(b.add(loop.index, b.idx(n)), False) for n in range(unroll)]
                loop.yield_(*some(places, loop.carried))
            sums = loop.results
        if self.whole < self.share:
            with self.ev.scope():
                sums = some([self._place(b.idx(self.whole), True)], sums)
        return list(sums)

    # Results ----------------------------------------------------------------------------------
    def _store(self, first: KValue, sums: Sequence[Sequence[KValue]], inside: KValue | None) -> None:
        """Add the sums of a subgroup's invocations, and store the outputs of each row by one of them."""
        b, ev = self.b, self.ev
        totals = [[b.subgroup_reduce("add", b.reduce("add", v)) for v in cells] for cells in sums]
        for cell, (row, _) in enumerate(self.cells):
            here = b.compare("eq", self.lane, b.idx(cell % self.size))
            condition = here if inside is None else b.binary("and", inside, here)
            with b.if_(condition), ev.scope():
                ev.vector = None
                self.products[0].bind(row, 0, first)
                whole = {p.root: cells[cell] for p, cells in zip(self.products, totals, strict=True)}
                for root, total in whole.items():
                    ev.reduced[root.op] = total
                for root in self.nest.roots:
                    if root.stores:
                        value = whole[root] if root in whole else ev.root(root)
                        ev.store(root.op.output, self.nest.store_address(root), value)
