"""Products for persistent kernels, which copy weights to workgroup memory before the vector is known.

A workgroup has adjacent outputs. Their weights come as a stream of parts of rows
(`mansard.codegen.kernel.weight_streams`), which its subgroups take in turn, whatever row they are of; that
keeps all of them busy where there are few outputs. The sums of the parts meet in workgroup memory::

    x = norm(hidden)                                   all invocations, into workgroup memory
    for batch of my outputs:
        for part of their weights that is my subgroup's:
            partial[part] = sum over invocations of x[part] . w[part]
        y[output] = epilogue(sum over its parts of partial[part])
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.evaluate import register_dtype
from mansard.codegen.held_values import held_vectors
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.quad_products import WORDS
from mansard.codegen.kernel.weight_streams import StreamedKernel
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Read, Root
from mansard.codegen.schedules.common.base import Frame
from mansard.codegen.schedules.gpu.ahead import load_ahead, plain_reads
from mansard.codegen.schedules.gpu.gemv.form import Form, chunk_of, rows_of
from mansard.codegen.schedules.gpu.gemv.fused import MAX_ROWS, forms_of
from mansard.codegen.schedules.gpu.gemv.grouped import GroupedSums
from mansard.codegen.schedules.gpu.gemv.parts import Parts
from mansard.codegen.schedules.gpu.gemv.quads import QuadSums, quad_vector, same_vector
from mansard.codegen.schedules.gpu.gemv.rounded import RoundedRows
from mansard.codegen.schedules.gpu.gemv.slot_sums import SlotSums
from mansard.codegen.schedules.gpu.gemv.stream_layout import SUBGROUP, StreamLayout, layout
from mansard.codegen.schedules.gpu.gemv.sums import GemvTile, ReducedMajor
from mansard.codegen.schedules.gpu.reduction.rows import MAX_LANES, Rows
from mansard.dtypes import DType
from mansard.hal.weight_streams import MAX_OPERANDS, MAX_SLOT, SUBGROUPS, WeightStream
from mansard.ir import float12
from mansard.ir.scalar import walk
from mansard.ir.types import Value

WIDTH = 256
"""Invocations of a workgroup."""
MAX_PARTIALS = 512
"""Partial sums in workgroup memory: where a workgroup has more, it computes its outputs batch by batch."""
MAX_SHARED = 44 << 10
"""The most workgroup memory, with two slots for each subgroup."""
LANES, GROUPED_LANES = 8, 4
"""Elements of a register vector; where weights are small integers."""
PAIRED = 2 * WORDS
"""bf16 that matrix units take at a time from each invocation."""


def streamed(parts: Parts, target: KernelTarget, name: str) -> StreamedKernel | None:
    """The kernel of products for which there is one, otherwise None."""
    forms = forms_of(parts.products)
    if forms is None or rows_of(parts.products, forms[0]) > MAX_ROWS:
        return None
    if parts.value is not None:
        elements, dtype = parts.value.type.elements, parts.value.type.dtype
        if not isinstance(elements, int) or elements % LANES or register_dtype(dtype) is not DType.F32:
            return None
    kernel = _Kernel(parts, forms, target.with_one_subgroup_size(), name)
    found = kernel.layout()
    return kernel.run(found) if found is not None else None


def _nibbles(nest: Nest, root: Root) -> Read | None:
    """The read of the nibbles of weights in floats of 12 bits, where a product has such."""
    for node in walk(root.op.body):
        parts = float12.parts(node)
        if parts is not None:
            reads, _ = nest.part_reads(root, parts[1])
            return reads[0] if len(reads) == 1 else None
    return None


def _other_reads(nest: Nest, grouped: GroupedSums | None, nibbles: Read | None) -> list[Read]:
    """What a product's weights are read from beside their codes: scales and zero points, or nibbles."""
    if grouped is None:
        return [] if nibbles is None else [nibbles]
    reads = [read for node in grouped.nodes for read in nest.part_reads(grouped.root, node)[0]]
    return list({read.value: read for read in reads}.values())


class _Kernel:
    def __init__(self, parts: Parts, forms: Sequence[Form], target: KernelTarget, name: str) -> None:
        self.parts, self.nest, self.target = parts, parts.products, target
        self.frame = Frame(self.nest, target, name, WIDTH)
        self.b, self.ev = self.frame.b, self.frame.ev
        self.b.subgroup = SUBGROUP
        weights = forms[0].large.value.type.dtype
        self.nibbles = [_nibbles(self.nest, form.root) for form in forms]
        self.small = weights.bits < 16 and None in self.nibbles
        self.lanes = GROUPED_LANES if self.small else min(LANES, chunk_of(self.nest, forms[0]))
        if parts.value is not None:
            elements, dtype = parts.value.type.elements, parts.value.type.dtype
            assert isinstance(elements, int)
            lanes = self.lanes if parts.rounding is None else LANES
            self.ev.held[parts.value] = self.b.shared(dtype, held_vectors(elements // lanes), lanes)
        self.copied = self._copied(forms) if parts.value is None and parts.rounding is None else []
        for value in self.copied:
            elements = value.type.elements
            assert isinstance(elements, int)
            vectors = held_vectors(elements // self.lanes)
            self.ev.held[value] = self.b.shared(value.type.dtype, vectors, self.lanes)
        self.rounded: RoundedRows | None = None
        if parts.rounding is not None:
            self.rounded = RoundedRows(self.frame, target, parts.rounding, WIDTH, weights, LANES)
        self.products = [ReducedMajor(self.frame, f, GemvTile(WIDTH, SUBGROUP, 1, 1, 1)) for f in forms]
        first = self.products[0]
        self.form, self.chunk, self.rows = first.form, first.chunk, rows_of(self.nest, first.form)
        self.grouped = [GroupedSums.of(self.ev, self.nest, p.root, self.chunk) for p in self.products]
        self.lane = self.b.subgroup_place("subgroup_lane")
        self.summed = self.products
        """The products that a slot has parts of; where they take turns, the first stands for each."""

    def _quads(self) -> QuadSums | None:
        """The sums by matrix units, where all products take these and read their vector in words."""
        found = [quad_vector(self.nest, p.form) for p in self.products]
        vectors = [x for x in found if x is not None]
        if len(vectors) < len(found) or not same_vector([p.form for p in self.products], vectors):
            return None
        held = self.ev.held.get(vectors[0].value)
        for product in self.products:
            loads = {read.value: elements for read, elements in product.vector_loads.reads}
            size = loads.get(vectors[0].value, 0) if held is None else held.lanes
            if (held is not None and held.dtype is not DType.BF16) or size % PAIRED or self.chunk % PAIRED:
                return None
        return QuadSums(self.b, vectors[0], len(self.summed), self.rows, self.lane)

    def layout(self) -> StreamLayout | None:
        """The layout of the stream, where there is one and its slots fit beside workgroup memory."""
        if self.small != (None not in self.grouped) or (self.rounded is not None and not self.small):
            return None
        both = zip(self.grouped, self.nibbles, strict=True)
        reads = [_other_reads(self.nest, grouped, nibbles) for grouped, nibbles in both]
        values = [
            [p.form.large.value, *(r.value for r in rs)] for p, rs in zip(self.products, reads, strict=True)
        ]
        if any(value not in self.ev.binding_of for of_product in values for value in of_product):
            return None
        bindings = [[self.ev.binding_of[value] for value in of_product] for of_product in values]
        self.bindings = bindings
        turns = self._take_turns(values)
        size = MAX_SLOT
        while size:
            found = self._layout(reads, bindings, size, turns)
            if found is None:
                return None
            cells = self._cells(found)
            slots = 2 * WIDTH // SUBGROUP * sum(operand.part for operand in found.operands)
            if self.b.shared_bytes + 4 * cells + slots <= MAX_SHARED:
                self.partials = self.b.shared(DType.F32, cells)
                return found
            size //= 2
        return None

    def _layout(
        self, reads: Sequence[list[Read]], bindings: Sequence[list[int]], size: int, turns: bool
    ) -> StreamLayout | None:
        """The layout with slots of so many bytes: for parts of one product where products take turns, else
        for parts of all."""
        forms = [p.form for p in self.products]
        if turns:
            found = layout(self.nest, forms[:1], reads[:1], bindings[:1], size)
            depth = self.nest.total(self.form.root.inner)
            if found is not None and isinstance(depth, int):
                parts = depth // found.elements * len(forms)
                operands = len(found.operands) * len(forms)
                if SUBGROUPS % parts == 0 and operands <= MAX_OPERANDS:
                    self.summed = self.products[:1]
                    return found
        self.summed = self.products
        return layout(self.nest, forms, reads, bindings, size)

    def _take_turns(self, values: Sequence[Sequence[Value]]) -> bool:
        """Whether products differ in nothing but the constants that are streamed."""
        first, *others = (p.form.root.op for p in self.products)
        if not others or len(self.products) & (len(self.products) - 1):
            return False
        for op, streams in zip(others, values[1:], strict=True):
            parts = [(o.body, o.maps, o.extents, len(o.inputs)) for o in (first, op)]
            if parts[0] != parts[1] or len(streams) != len(values[0]):
                return False
            other = dict(zip(values[0], streams, strict=True))
            both = zip(first.inputs, op.inputs, strict=True)
            if any(other.get(x, x) is not y or x.type != y.type for x, y in both):
                return False
        return True

    @property
    def takes_turns(self) -> bool:
        """Whether a slot has parts of one of several products."""
        return len(self.summed) < len(self.products)

    def _cells(self, layout_: StreamLayout) -> int:
        """Divide the outputs into batches, each of which ends where all subgroups have had their turn; the
        partial sums of one."""
        depth, outputs = self.nest.total(self.form.root.inner), self.nest.total(self.form.column)
        assert isinstance(depth, int) and isinstance(outputs, int)
        self.count, self.outputs = depth // layout_.elements, outputs
        cells, turns = len(self.products) * self.rows, WIDTH // SUBGROUP
        most = min(WIDTH // self.rows, MAX_PARTIALS // (cells * self.count))
        self.batch = max(turns, most // turns * turns)
        return cells * self.batch * self.count

    def run(self, layout_: StreamLayout) -> StreamedKernel:
        """The finished kernel."""
        b, ev = self.b, self.ev
        self.slots = SlotSums(
            self.frame,
            self.products,
            self.nibbles,
            self.grouped,
            self.rounded,
            self._quads(),
            layout_,
            len(self.summed),
            self.rows,
            self.lanes,
        )
        group, groups, outputs = b.workgroup_id(0), b.workgroups(), b.idx(self.outputs)
        start = b.early(b.binary("div", b.mul(outputs, group), groups))
        end = b.early(b.binary("div", b.mul(outputs, b.add(group, b.idx(1))), groups))
        if self.parts.rows is not None:
            rows = Rows(self.parts.rows, self.target, "", self.frame, WIDTH, lanes=self._row_lanes())
            rows.ev.held = ev.held
            rows.compute()
        if self.rounded is not None:
            if self.parts.rows is not None:
                b.barrier()
            self.rounded.compute()
        for value in self.copied:
            self._copy(value)
        with b.for_(start, end, b.idx(self.batch)) as loop, ev.scope():
            count = self.frame.minimum(b.idx(self.batch), b.sub(end, loop.index))
            mine = b.binary("min", b.local_id(0), b.sub(b.mul(count, b.idx(self.rows)), b.idx(1)))
            self._bind_cell(loop.index, mine)
            self._load_operands()
            b.barrier()  # rows are there, and the partial sums of the last batch are read
            with ev.scope():
                self._sums(loop.index, count)
            b.barrier()
            with b.if_(b.compare("lt", b.local_id(0), b.mul(count, b.idx(self.rows)))), ev.scope():
                self._store(mine)
        kernel = self.frame.finish((1, 1, 1)).kernel
        operands, products = layout_.operands, 1
        if self.takes_turns:
            products = len(self.products)
            operands = tuple(
                operand._replace(binding=binding)
                for bindings in self.bindings
                for operand, binding in zip(operands, bindings, strict=True)
            )
        return StreamedKernel(kernel, WeightStream(self.outputs, self.count, operands, products))

    def _copied(self, forms: Sequence[Form]) -> list[Value]:
        """Vectors that are copied to workgroup memory before products read them, where nothing else does:
        exchanged ones, each element of which is then waited for by one invocation."""
        vectors = [quad_vector(self.nest, form) for form in forms]
        values = dict.fromkeys(x.value for x in vectors if x is not None)
        others = (root for root in self.nest.roots if not root.reduces)
        reads = [read for root in others for read in self.nest.reads(root)]
        elsewhere = {read.value for read in reads if read.address is not None}
        return [
            value
            for value in values
            if value not in elsewhere
            and self.ev.binding_of.get(value) in self.b.exchange.bindings
            and isinstance(value.type.elements, int)
            and value.type.elements % self.lanes == 0
        ]

    def _copy(self, value: Value) -> None:
        """Copy a vector; invocations past its end copy its last elements once more."""
        b, elements, lanes = self.b, value.type.elements, self.lanes
        assert isinstance(elements, int)
        memory, copies = b.bindings[self.ev.binding_of[value]], []
        for first in range(0, elements, WIDTH * lanes):  # all are requested before one is waited for
            at = b.add(b.mul(b.local_id(0), b.idx(lanes)), b.idx(first))
            if first + WIDTH * lanes > elements:
                at = self.frame.minimum(at, b.idx(elements - lanes))
            copies.append((at, b.load(memory, at, lanes, aligned=True)))
        for at, vector in copies:
            self.ev.hold(value, at, vector)

    def _row_lanes(self) -> int:
        """Elements of vectors of the rows that are computed first: those of workgroup memory, or fewer where
        many invocations would have none."""
        value = self.parts.value
        assert value is not None and isinstance(value.type.elements, int)
        lanes = self.ev.held[value].lanes
        return lanes if value.type.elements >= lanes * WIDTH else MAX_LANES

    # Sums -------------------------------------------------------------------------------------
    def _sums(self, start: KValue, count: KValue) -> None:
        """The partial sums of a batch."""
        b, ev = self.b, self.ev
        of_row = self.count * (len(self.products) if self.takes_turns else 1)
        parts = b.mul(count, b.idx(of_row))
        mine = b.subgroup_place("subgroup_id")
        with b.for_(mine, parts, b.idx(WIDTH // SUBGROUP)) as loop, ev.scope():
            place, first_cell = loop.index, b.idx(0)
            output, part = self.frame.decode(loop.index, (self.batch, of_row))
            if self.takes_turns:  # a row's parts of one product, then those of the next
                product, part = self.frame.decode(part, (len(self.products), self.count))
                place = b.add(b.mul(output, b.idx(self.count)), part)
                first_cell = b.mul(product, b.idx(self.rows * self.batch * self.count))
            first = b.add(start, output)
            totals = self.slots.part(first, part)
            whole = [b.subgroup_reduce("add", b.reduce("add", v)) for v in totals]
            with b.if_(b.compare("eq", self.lane, b.idx(0))):
                for cell, value in enumerate(whole):
                    b.store(self.partials, b.add(first_cell, self._place(cell, place)), value)

    def _place(self, cell: int, part: KValue) -> KValue:
        return self.b.add(part, self.b.idx(cell * self.batch * self.count))

    # Results ----------------------------------------------------------------------------------
    def _bind_cell(self, start: KValue, cell: KValue) -> None:
        """Bind the loops over outputs to an invocation's output and row of a batch."""
        output, row = self.frame.decode(cell, (self.batch, self.rows))
        if self.form.rows:
            self.frame.bind_flat(self.form.rows, row)
        self.ev.bind(self.form.column, self.b.add(start, output))

    def _load_operands(self) -> None:
        """Load what the results of an invocation's cell are computed from beside sums, before there are
        any."""
        for root in self.nest.roots:
            if root.stores and not root.reduces:
                load_ahead(self.ev, plain_reads(self.ev, root))

    def _store(self, cell: KValue) -> None:
        """Add the partial sums of an invocation's cell, and store its results."""
        b = self.b
        output, row = self.frame.decode(cell, (self.batch, self.rows))
        place = b.add(b.mul(output, b.idx(self.count)), b.mul(row, b.idx(self.batch * self.count)))
        whole = {p.root: self._total(number, place) for number, p in enumerate(self.products)}
        self.frame.store_all(whole)

    def _total(self, product: int, place: KValue) -> KValue:
        b = self.b
        first = self._place(product * self.rows, place)
        with b.for_(0, self.count, inits=[b.const(0.0, DType.F32)], unroll=4) as walk:
            partial = b.load(self.partials, b.add(first, walk.index))
            walk.yield_(b.add(walk.carried[0], partial))
        return walk.results[0]
