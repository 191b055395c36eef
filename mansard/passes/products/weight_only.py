"""Quantisation on request: weights of products are stored as 8- or 4-bit integers with scales, or in 12 bits.

Before (a linear layer)::

    %y[d0, d1] = sum(d2) %x[d0, d2] * %w[d1, d2]                                      %w: 64x128xf32

After, in groups of 32 (`mansard.ir.quantised_weight`)::

    %y[d0, d1] = sum(d2, d3) %x[d0, 32*d2 + d3] *
                   (f32(%w.codes[d1, 32*d2 + d3]) * f32(%w.scales[d1, d2]))   %w.codes: 64x128xi4, %w.scales:
                   64x4xbf16

With ``float12`` the weight is in floats of 12 bits (`mansard.ir.float12`), and the sums, and what its
exceptions add to them, are multiplied by the factors of its rows. Weights with many exceptions stay as they
are. Of stacks of matrices, of which indices choose some (experts), codes and scales are such stacks too::

    %y[d0, d1] = sum(d2, d3) %x[d0, 32*d2 + d3] *
                   (f32(%w.codes{%e[d0], d1, 32*d2 + d3}) * f32(%w.scales{%e[d0], d1, d2}))

With ``activations="int8"`` x is rounded too, with a scale for each row and group
(`activations`). Lookups in a weight that is also a product's (tied embeddings) read the codes. Weights are
quantised one at a time, when they are loaded, from the model's own floats
(`mansard.passes.products.quantiser`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mansard import dims
from mansard.analysis.linear import to_scalar
from mansard.analysis.operands import tidy
from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.ir import float12, quantised_weight
from mansard.ir.dispatch import is_contraction
from mansard.ir.float12 import Float12Weight
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic, Op
from mansard.ir.quantised_weight import GroupFactor, QuantisedWeight
from mansard.ir.scalar import Apply, Arg, Cast, Gather, Scalar, rewrite
from mansard.ir.types import Constant, IndexMap, Linear, TensorType, Value
from mansard.passes.canonical.simplify import simplify_op
from mansard.passes.products.activations import FEW_ROWS, Activations
from mansard.passes.products.chosen_weights import Stored, at_groups, chooses_matrices
from mansard.passes.products.float12_weights import (
    Float12Data,
    scaled,
    scaled_sums,
    takes_exceptions,
    unpacked,
    words_of_rows,
)
from mansard.passes.products.quantisation import STORED, Quantisation
from mansard.passes.products.quantiser import CODES, Array, quantise
from mansard.passes.products.rounded_factors import FLOATS, round_factors, rounded_product

F32 = DType.F32
FEW_ROWS_OF_FLOAT12 = 8
"""Kernels of so many rows unpack numbers as they read them (`mansard.codegen.schedules.cpu.gemv`)."""


@dataclass(frozen=True)
class _Product:
    """A sum of products of x with a constant: its operands, and the dims of the constant's two axes."""

    op: Generic
    x: int
    weight: Value
    column: int
    transposed: bool
    """Whether the weight is (K, N)."""


def quantise_weights(
    graph: Graph, quantisation: Quantisation | None, *, bf16: bool = False, few_rows: bool = False
) -> Graph:
    """Store the weights of products as ``quantisation`` says; the same graph if there are none.

    With ``bf16``, what they are multiplied with is rounded to bf16 (`mansard.passes.products.demote`). With
    ``few_rows`` no more rows are rounded to bytes than the kernels of GPUs take (`activations.FEW_ROWS`).
    """
    if quantisation is None:
        return graph
    if quantisation.kind == STORED:
        most = FEW_ROWS if few_rows else None
        return round_factors(graph, Activations(set(), quantisation.activations, most))
    return _Pass(graph, quantisation, bf16, few_rows).run()


class _Pass:
    def __init__(self, graph: Graph, quantisation: Quantisation, bf16: bool, few_rows: bool) -> None:
        self.graph, self.quantisation = graph, quantisation
        self.stacks = bool(quantisation.activations) and not few_rows
        """Whether what chosen matrices are multiplied with is rounded."""
        self.users = graph.users()
        self.taken = {v.name for v in graph.values()}
        self.constants = dict(graph.constants)
        self.activations = Activations(self.taken, "bf16" if bf16 else None)
        if quantisation.activations:
            most = FEW_ROWS if few_rows else None
            self.activations = Activations(self.taken, quantisation.activations, most)
        self.words: dict[Value, int] = {}
        """Of a row of weights in floats of 12 bits."""

    def run(self) -> Graph:
        products = {op: p for op in self.graph.ops if (p := self._product(op)) is not None}
        orders: dict[Value, bool] = {}
        for p in products.values():
            if orders.setdefault(p.weight, p.transposed) is not p.transposed:
                orders.pop(p.weight)
        if self.quantisation.tables:
            for value in self.graph.constants:
                if value not in orders and self._eligible(value) and self._is_table(value):
                    orders[value] = False
        if self.quantisation.stacks:
            orders |= {value: False for value in self.graph.constants if self._is_stack(value)}
        orders = {value: order for value, order in orders.items() if self._follow(value, products)}
        if self.quantisation.kind == "float12":
            weights = [(value, self.graph.constants[value], order) for value, order in orders.items()]
            self.words = words_of_rows(weights, [(p.weight, p.op.inputs[p.x]) for p in products.values()])
            orders = {value: orders[value] for value in self.words}
        if not orders:
            return self.graph
        stored = {value: self._stored(value, transposed) for value, transposed in orders.items()}
        ops: list[Op] = []
        for op in self.graph.ops:
            p = products.get(op)
            if p is not None and p.weight in stored:
                ops.extend(self._quantised(p, stored[p.weight]))
            elif isinstance(op, Generic) and not stored.keys().isdisjoint(op.inputs):
                product = _lookup(op, stored, orders)
                rounded = rounded_product(product, self.constants, self.activations) if self.stacks else None
                ops.extend(rounded or [product])
            else:
                ops.append(op)
        needed = {v for op in ops for v in op.inputs} | set(self.graph.live_outs())
        constants = {v: c for v, c in self.constants.items() if v in needed or v not in stored}
        return self.graph.with_ops(ops, constants=constants)

    # Recognising --------------------------------------------------------------------------------
    def _eligible(self, value: Value, rank: int = 2) -> bool:
        if value not in self.graph.constants or value in self.graph.live_outs() or value.type.rank != rank:
            return False
        elements = value.type.elements
        if value.type.dtype not in FLOATS or not isinstance(elements, int):
            return False
        return self.quantisation.takes(self.graph.constants[value].key, elements)

    def _product(self, op: Op) -> _Product | None:
        if not isinstance(op, Generic) or not is_contraction(op) or len(op.inputs) != 2:
            return None
        body = op.body
        if not isinstance(body, Apply) or body.op != "mul" or body.dtype not in FLOATS:
            return None
        leaves = [a.arg if isinstance(a, Cast) and a.dtype is body.dtype else a for a in body.args]
        if not all(isinstance(a, Arg) and a.dtype in FLOATS for a in leaves) or len(op.reduced) != 1:
            return None
        if {a.index for a in leaves if isinstance(a, Arg)} != {0, 1}:
            return None
        for operand, value in enumerate(op.inputs):
            if self._eligible(value) and (axes := _axes(op, operand)) is not None:
                return _Product(op, 1 - operand, value, *axes)
        return None

    def _is_table(self, value: Value) -> bool:
        users = self.users.get(value, [])
        return bool(users) and all(
            isinstance(op, Generic) and op.maps[op.inputs.index(value)] is None for op in users
        )

    def _is_stack(self, value: Value) -> bool:
        """Whether a value is a stack of matrices (N, K), of which products choose one by a computed index."""
        if not self._eligible(value, 3):
            return False
        readers = self.users.get(value, [])
        return bool(readers) and all(chooses_matrices(op, value) for op in readers)

    def _follow(self, value: Value, products: Mapping[Op, _Product]) -> bool:
        """Whether every reader can read codes."""
        return all(
            (op in products and products[op].weight is value) or _reads_elements(op, value)
            for op in self.users.get(value, [])
        )

    # Rewriting ----------------------------------------------------------------------------------
    def _stored(self, value: Value, transposed: bool) -> Stored:
        """The constants of a weight: codes, scales and zeros, or the parts of its numbers."""
        source, how = self.graph.constants[value], self.quantisation
        *stack, rows, depth = value.type.shape[::-1] if transposed else value.type.shape
        assert isinstance(rows, int) and isinstance(depth, int)
        if how.kind == "float12":
            words = self.words[value]
            numbers = Float12Data(value, source, transposed, words)
            exceptions = None
            if words:
                of_rows = (words, rows)
                exceptions = self._constant(value, "exceptions", of_rows, DType.I32, numbers.exceptions)
            return Float12Weight(
                self._constant(value, "high", (rows, depth), DType.U8, numbers.high),
                self._constant(value, "low", (rows, depth), DType.U4, numbers.low),
                self._constant(value, "factors", (rows,), F32, numbers.factors),
                exceptions,
            )
        group = how.group(depth)
        padded = -(-depth // group) * group
        data = _Data(value, source, transposed, padded, group, how)
        shape = (*(n for n in stack if isinstance(n, int)), rows)
        codes = self._constant(value, "codes", (*shape, padded), CODES[how.bits, how.symmetric], data.codes)
        few = (*shape, padded // group)
        scales = GroupFactor(self._constant(value, "scales", few, how.scale, data.scales), group)
        zeros = None
        if not how.symmetric:
            zeros = GroupFactor(self._constant(value, "zeros", few, DType.U8, data.zeros), group)
        return QuantisedWeight(codes, (scales,), zeros)

    def _constant(self, like: Value, part: str, shape: tuple[int, ...], dtype: DType, data: object) -> Value:
        assert callable(data)
        name = fresh_name(self.taken, f"{like.name}.{part}")
        stored = Value(name, TensorType(shape, dtype))
        how = self.quantisation
        key = f"{self.graph.constants[like].key}.{how.kind}.{how.group_size or 'rows'}.{part}"
        self.constants[stored] = Constant(key, data)
        return stored

    def _quantised(self, p: _Product, weight: Stored) -> list[Op]:
        """The product with the stored weight, and what rounds x before it."""
        op, rank = p.op, p.op.rank
        x, index_map = op.inputs[p.x], op.maps[p.x]
        assert index_map is not None
        if isinstance(weight, Float12Weight):
            return self._product_of_float12(p, weight, x, index_map)
        depth, group = weight.codes.type.shape[1], weight.scales[0].size
        assert isinstance(depth, int)
        ops, operands, factor = self.activations.operands(x, index_map, rank, depth, group)
        out = op.output
        if out.type.dtype is not F32:
            out = Value(fresh_name(self.taken, f"{out.name}.f32"), replace(out.type, dtype=F32))
        column = Linear.dim(p.column)
        result = quantised_weight.product(weight, operands, factor, op.extents[:rank], column, out)
        ops.append(replace(result, location=op.location))
        if out is not op.output:
            body = Cast(Arg(0, F32), op.output.type.dtype)
            identity = (IndexMap.identity(rank),)
            ops.append(Generic((out,), op.outputs, op.extents[:rank], identity, body, location=op.location))
        return ops

    def _product_of_float12(
        self, p: _Product, weight: Float12Weight, x: Value, index_map: IndexMap
    ) -> list[Op]:
        """The sums of products with the numbers, and those times the factors of their rows.

        Many rows multiply the numbers as bf16, which is stored for that: a kernel would unpack them anew for
        every few rows.
        """
        op, rank, depth = p.op, p.op.rank, weight.high.type.shape[1]
        assert isinstance(depth, int)
        ops, ((x, _, _),), factor = self.activations.operands(x, index_map, rank, depth, depth)
        place = IndexMap((Linear.dim(p.column), Linear.dim(rank)))
        rows = dims.product(e for d, e in enumerate(op.extents[:rank]) if d != p.column)
        few = dims.bounds(rows)[1] <= FEW_ROWS_OF_FLOAT12
        few = few and (weight.exceptions is None or takes_exceptions(index_map, rank))
        if few:
            parts: tuple[Value, ...] = (weight.high, weight.low)
            number: Scalar = float12.value(Arg(1, DType.U8), Arg(2, DType.U4))
        else:
            ops.append(unpacked(weight, self.taken))
            parts, number = ops[-1].outputs, Cast(Arg(1, DType.BF16), F32)
        body = Apply("mul", (factor, number), F32)
        sums = Value(fresh_name(self.taken, f"{op.output.name}.sums"), replace(op.output.type, dtype=F32))
        inputs, maps = (x, *parts), (index_map, *(place for _ in parts))
        ops.append(Generic(inputs, (sums,), op.extents, maps, body, "add", location=op.location))
        if few:
            result = scaled_sums(sums, weight, x, index_map, p.column, op.output)
        else:
            result = scaled(sums, weight, p.column, op.output)
        return [*ops, replace(result, location=op.location)]


def _axes(op: Generic, operand: int) -> tuple[int, bool] | None:
    """(the parallel dim of the weight's columns, whether K comes first) of a plainly read weight that the
    other operand shares only K with."""
    index_map, other = op.maps[operand], op.maps[1 - operand]
    if index_map is None or other is None or index_map.fill is not None or other.fill is not None:
        return None
    plain = index_map.plain_dims
    if plain is None or None in plain or len(set(plain)) != 2 or op.rank not in plain:
        return None
    column = next(d for d in plain if d != op.rank)
    if column is None or any(d == column for r in other.results for d, _ in r.terms):
        return None
    value = op.inputs[operand]
    if any(value.type.shape[axis] != op.extents[d] for axis, d in enumerate(plain) if d is not None):
        return None
    return column, plain[0] == op.rank


def _reads_elements(op: Op, value: Value) -> bool:
    """Whether a reader is a Generic whose reads of a value can be written as lookups."""
    if not isinstance(op, Generic):
        return False
    for operand, index_map in zip(op.inputs, op.maps, strict=True):
        if operand is value and index_map is not None:
            offsets = [n for r in index_map.results for n in (r.offset, *(c for _, c in r.terms))]
            if index_map.fill is not None or not all(isinstance(n, int) for n in offsets):
                return False
    return True


def _lookup(op: Generic, stored: Mapping[Value, Stored], orders: Mapping[Value, bool]) -> Generic:
    """Another reader of weights, reading their codes."""
    op = at_groups(op, stored)
    inputs, maps = list(op.inputs), list(op.maps)
    exact: dict[Scalar, Scalar] = {}  # factors of products, which are not rounded to the weight's type

    def leaf(node: Scalar) -> Scalar:
        if isinstance(node, Cast) and node.dtype is F32 and node.arg in exact:
            return exact[node.arg]
        if isinstance(node, Gather) and op.inputs[node.operand] in stored:
            value, indices = op.inputs[node.operand], node.indices
        elif isinstance(node, Arg) and op.inputs[node.index] in stored:
            value, index_map = op.inputs[node.index], op.maps[node.index]
            assert index_map is not None
            indices = tuple(to_scalar(result) for result in index_map.results)
        else:
            return node
        *row, k = indices[::-1] if orders[value] else indices
        weight = stored[value]
        if isinstance(weight, Float12Weight):
            values, body = float12.element(weight, row[0], k, len(inputs))
        else:
            values, body = quantised_weight.element(weight, row, k, len(inputs))
        inputs.extend(values)
        maps.extend(None for _ in values)
        if node.dtype is F32:
            return body
        rounded = Cast(body, node.dtype)
        if value.type.rank > 2:
            exact[rounded] = body
        return rounded

    body = rewrite(op.body, leaf)
    new = tidy(replace(op, inputs=tuple(inputs), maps=tuple(maps), body=body))
    if op.combiner is None:
        return new
    simple = simplify_op(new)  # which group an element is in
    assert isinstance(simple, Generic)
    return simple


class _Data:
    """The stored data of one weight, computed when it is loaded. The scales, which are small, are kept."""

    def __init__(
        self, value: Value, source: Constant, transposed: bool, depth: int, group: int, how: Quantisation
    ) -> None:
        self.value, self.source, self.transposed = value, source, transposed
        self.depth, self.group, self.how = depth, group, how
        self.small: tuple[Array, Array | None] | None = None

    def codes(self) -> Array:
        weight = load(self.value, self.source)
        weight = np.ascontiguousarray(weight.T) if self.transposed else weight
        *stack, depth = weight.shape
        weight = weight.reshape(-1, depth)
        missing = self.depth - depth
        if missing:
            weight = np.pad(weight, ((0, 0), (0, missing)))
        try:
            rounded = quantise(
                weight, self.how.bits, self.group, self.how.scale, symmetric=self.how.symmetric
            )
        except ValueError as error:
            raise CompileError(f"weight {self.source.key!r} cannot be quantised: {error}") from None
        codes, scales, zeros = (
            part.reshape(*stack, -1) if part is not None else None
            for part in (rounded.codes, rounded.scales, rounded.zeros)
        )
        assert codes is not None and scales is not None
        self.small = scales, zeros
        return codes

    def scales(self) -> Array:
        if self.small is None:
            self.codes()
        assert self.small is not None
        return self.small[0]

    def zeros(self) -> Array:
        if self.small is None:
            self.codes()
        assert self.small is not None and self.small[1] is not None
        return self.small[1]
