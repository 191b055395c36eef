"""The layout of a weight stream: which operands of products it has, and how large the parts of their rows
are.

Beside the weights these are the scales and zero points of groups of small integers, which lie row by row as
well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.codegen.loop_nest import Nest, Read
from mansard.codegen.schedules.gpu.gemv.form import MAX_LOAD_BYTES, Form, chunk_of
from mansard.hal.weight_streams import ALIGNMENT, MAX_OPERANDS, MAX_SLOT, StreamOperand

SUBGROUP = 32
MAX_OUTPUTS = 1 << 19
"""So many times the workgroups of any device are an i32."""


@dataclass(frozen=True)
class Factor:
    """A read of which groups of ``elements`` weights share each element."""

    read: Read
    elements: int


@dataclass(frozen=True)
class ProductLayout:
    """The operands of one product: its weights, and what its factors are read from."""

    weights: StreamOperand
    factors: tuple[tuple[Factor, StreamOperand], ...]


@dataclass(frozen=True)
class StreamLayout:
    """The layout of a kernel's stream. An invocation loads 16 bytes of weights ``loads`` times for a part of
    ``elements`` weights."""

    products: tuple[ProductLayout, ...]
    loads: int
    elements: int

    @property
    def operands(self) -> tuple[StreamOperand, ...]:
        """All operands, in the order of a slot."""
        return tuple(o for p in self.products for o in (p.weights, *(operand for _, operand in p.factors)))


def layout(
    nest: Nest,
    forms: Sequence[Form],
    reads: Sequence[Sequence[Read]],
    bindings: Sequence[Sequence[int]],
    slot: int = MAX_SLOT,
) -> StreamLayout | None:
    """The layout for products, None where an operand does not lie row by row or no part fits a slot of so
    many bytes.

    ``reads`` are those of each product's factors, ``bindings`` the places of the weights and of these.
    """
    factors: list[list[Factor]] = []
    for form, others in zip(forms, reads, strict=True):
        outputs = nest.total(form.column)
        if form.rest or not isinstance(outputs, int) or outputs > MAX_OUTPUTS:
            return None
        if _shared_by(nest, form, form.large) != 1:
            return None
        sizes = [_shared_by(nest, form, read) for read in others]
        factors.append([Factor(read, n) for read, n in zip(others, sizes, strict=True) if n is not None])
        if len(factors[-1]) < len(others):
            return None
    load = chunk_of(nest, forms[0]) * SUBGROUP
    depth = nest.total(forms[0].root.inner)
    if chunk_of(nest, forms[0]) * forms[0].large.value.type.dtype.bits != 8 * MAX_LOAD_BYTES:
        return None
    assert isinstance(depth, int)
    count = slot // (MAX_LOAD_BYTES * SUBGROUP)
    while count:
        found = _placed(forms, factors, bindings, count, load, slot)
        if found is not None and depth % (count * load) == 0:
            return found
        count //= 2
    return None


def _shared_by(nest: Nest, form: Form, read: Read) -> int | None:
    """How many adjacent weights of a row share an element of a read; None where rows are not contiguous."""
    address = read.address
    if address is None or address.offset != 0 or read.guards:
        return None
    terms, stride, shared = dict(address.terms), 1, 1
    for group in (*reversed(form.reduced), form.column):
        total, found = nest.total(group), terms.get(group[-1], 0)
        if not isinstance(total, int):
            return None
        if found == 0 and stride == 1 and group is not form.column:
            shared *= total
        elif found == stride:
            stride *= total
        else:
            return None
    return shared


def _placed(
    forms: Sequence[Form],
    factors: Sequence[Sequence[Factor]],
    bindings: Sequence[Sequence[int]],
    loads: int,
    load: int,
    slot: int,
) -> StreamLayout | None:
    """The layout with so many loads of ``load`` elements for each part, where it fits a slot."""
    elements, products, end = loads * load, [], 0
    for form, of_product, numbers in zip(forms, factors, bindings, strict=True):
        operands = []
        for binding, (read, shared) in zip(
            numbers, [(form.large, 1), *((f.read, f.elements) for f in of_product)], strict=True
        ):
            dtype = read.value.type.dtype
            bits, rest = divmod(elements * dtype.bits, shared)
            size = bits // 8
            if rest or bits % (8 * ALIGNMENT) or shared & (shared - 1) or (shared > 1 and dtype.bits < 8):
                return None
            operands.append(StreamOperand(binding, size, end))
            end += size
        products.append(ProductLayout(operands[0], tuple(zip(of_product, operands[1:], strict=True))))
    found = StreamLayout(tuple(products), loads, elements)
    return found if end <= slot and len(found.operands) <= MAX_OPERANDS else None
