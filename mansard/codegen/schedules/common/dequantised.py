"""Matching of products with weights of small integers (`mansard.ir.quantised_weight`).

The summed body is ``x * ((codes - zero) * scale + offset) * scale ...`` in f32, where all but x and the codes
are the same along the innermost reduced loop. A kernel then sums ``x * codes`` over that loop, in integers if
x is one too, and applies the rest once for each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.contraction import Group
from mansard.codegen.schedules.common.dot_products import DotFactor, stored_factor
from mansard.dtypes import DType
from mansard.ir.quantised_weight import CODES
from mansard.ir.scalar import Apply, Cast, Gather, Scalar
from mansard.ir.types import Linear

F32 = DType.F32


@dataclass(frozen=True)
class DequantisedProduct:
    """A sum over groups of ``outer * (inner * (sum of x * codes - zero * sum of x) + offset * sum of x)``.

    ``outer``, ``zero``, ``inner`` and ``offset`` are f32 expressions over operands that the innermost reduced
    loop does not index; factors are in lists, of which the product is meant.
    """

    x: Scalar
    stored: DotFactor | None
    """The buffer behind x, if it is read as it is stored."""
    codes: DotFactor
    code: Cast
    """What reads one of them, in f32."""
    zero: Scalar | None
    inner: tuple[Scalar, ...]
    offset: Scalar | None
    outer: tuple[Scalar, ...]
    column: Group
    row: Group | None
    rest: tuple[Group, ...]
    reduced: tuple[Group, ...]

    @property
    def sums(self) -> bool:
        """Whether the sums of x over each group are needed."""
        return self.zero is not None or self.offset is not None

    @property
    def scales(self) -> tuple[Scalar, ...]:
        """The factors of all that a group adds."""
        return self.outer if self.offset is not None else (*self.outer, *self.inner)

    @property
    def applied(self) -> list[Scalar]:
        """All that is applied to the codes or to sums of groups."""
        return [*self.inner, *self.outer, *(n for n in (self.zero, self.offset) if n is not None)]

    @property
    def plain(self) -> bool:
        """Whether nothing is applied to the groups' sums."""
        return not self.sums and not self.inner and not self.outer


def dequantised_product(nest: Nest, root: Root, *, chosen: bool = False) -> DequantisedProduct | None:
    """The parts of a reduction of this form, or None. ``chosen``: also with codes of matrices that computed
    indices choose out of a stack; the address of the codes then lacks what those indices add."""
    body = root.op.body
    if root.op.combiner != "add" or body.dtype is not F32 or not root.inner:
        return None
    return _Match(nest, root, chosen).product(body)


@dataclass(frozen=True)
class _Core:
    """``(node - zero) * inner + offset``."""

    node: Scalar
    zero: Scalar | None = None
    inner: tuple[Scalar, ...] = ()
    offset: Scalar | None = None


class _Match:
    def __init__(self, nest: Nest, root: Root, chosen: bool) -> None:
        self.nest, self.root, self.chosen = nest, root, chosen
        self.reduced = nest.collapsed(root.inner, nest.positions(root))

    def product(self, body: Scalar) -> DequantisedProduct | None:
        if not self.reduced:
            return None
        factors = _factors(body)
        varying = [f for f in factors if self._varies(f)]
        cores = [self._core(f) for f in varying]
        if len(cores) != 2 or None in cores:
            return None
        outer = tuple(f for f in factors if f not in varying)
        for x, weight in (cores, cores[::-1]):
            assert x is not None and weight is not None
            codes = self._stored(weight.node)
            if x.zero or x.inner or x.offset or codes is None or codes.value.type.dtype not in CODES:
                continue
            assert isinstance(weight.node, Cast)
            matched = self._with_loops(x.node, weight, weight.node, codes, outer)
            if matched is not None:
                return matched
        return None

    def _with_loops(
        self, x: Scalar, weight: _Core, code: Cast, codes: DotFactor, outer: tuple[Scalar, ...]
    ) -> DequantisedProduct | None:
        nest = self.nest
        groups = nest.collapsed(range(nest.domain), [p for r in nest.roots for p in nest.positions(r)])
        reads, uses = nest.part_reads(self.root, x)
        used = {loop for at in (*(r.address for r in reads), *uses) if at is not None for loop, _ in at.terms}
        indexed = dict(codes.address.terms)
        store = nest.result_strides()
        columns = [g for g in groups if g[-1] in indexed]
        if not columns or any(g[-1] in used for g in columns) or store.get(columns[-1][-1]) != 1:
            return None
        rows = sorted((g for g in groups if g not in columns), key=lambda g: -_count(nest, g))
        rest = (*columns[:-1], *rows[1:])
        return DequantisedProduct(
            x, self._stored(x), codes, code, weight.zero, weight.inner, weight.offset, outer,
            columns[-1], rows[0] if rows else None, rest, tuple(self.reduced),
        )  # fmt: skip

    def _core(self, node: Scalar) -> _Core | None:
        """A varying factor taken apart."""
        if isinstance(node, Apply) and node.op in ("add", "sub"):
            main, other = node.args
            if node.op == "add" and self._varies(other):
                main, other = other, main
            if self._varies(other):
                return None
            factors = _factors(main)
            varying = [f for f in factors if self._varies(f)]
            if len(varying) != 1:
                return None
            core = self._core(varying[0])
            scales = tuple(f for f in factors if f not in varying)
            if core is None or core.inner or core.offset:
                return None
            if node.op == "sub" and not scales and core.zero is None:
                return _Core(core.node, other)
            offset = other if node.op == "add" else Apply("neg", (other,), F32)
            return _Core(core.node, core.zero, scales, offset)
        return _Core(node)

    def _varies(self, node: Scalar) -> bool:
        """Whether a node depends on the innermost reduced loop."""
        reads, uses = self.nest.part_reads(self.root, node)
        if self.chosen:  # gathers: the positions of their indices are among those that are used
            reads = [read for read in reads if read.address is not None or read.computed is not None]
        loop = self.reduced[-1][-1]
        places: Sequence[Linear | None] = [*(r.address for r in reads), *uses]
        return any(at is None or loop in dict(at.terms) for at in places)

    def _stored(self, node: Scalar) -> DotFactor | None:
        """The buffer and address of ``f32(arg)``, contiguous along the innermost loop."""
        arg = node.arg if isinstance(node, Cast) and node.dtype is F32 else node
        factor = self._chosen(arg) if isinstance(arg, Gather) else stored_factor(self.nest, self.root, arg)
        if factor is None:
            return None
        return factor if dict(factor.address.terms).get(self.reduced[-1][-1]) == 1 else None

    def _chosen(self, node: Gather) -> DotFactor | None:
        """The buffer that a gather reads, and its address without the computed part."""
        if not self.chosen:
            return None
        value = self.nest.buffer(self.root.op.inputs[node.operand])
        return DotFactor(value, self.nest.computed_place(self.root.op, node, self.root.index).affine)


def _factors(node: Scalar) -> list[Scalar]:
    if isinstance(node, Apply) and node.op == "mul" and node.dtype is F32:
        return [factor for arg in node.args for factor in _factors(arg)]
    return [node]


def _count(nest: Nest, group: Group) -> int:
    from mansard.codegen.schedules.common.base import estimate

    return estimate(nest.total(group))
