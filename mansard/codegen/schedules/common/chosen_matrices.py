"""Products with matrices that computed indices choose out of stacks, such as those of experts.

    y[g, r, n] = sum(k) x[g, r, k] * w{e[g], n, k}          w: matrices x N x K

For kernels a matrix is a buffer like any other, ``y[g, r, n] = sum(k) x[g, r, k] * w'[n, k]``, whose place in
the stack follows from the loops that choose it. Those of the domain are ones that a kernel's workgroups have
fixed: no schedule of products sees them, and a stack may be packed as any constant, matrix by matrix.

Numbers may be negative where a sum is one of ``select(e[g] >= 0, x * w{max(e[g], 0)}, 0)``: workgroups of
such a point then only store what follows from zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mansard import dims
from mansard.analysis.affine import Affine
from mansard.analysis.linear import within
from mansard.analysis.operands import with_reads
from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.ir import Binding, Memory
from mansard.codegen.loop_nest import ChosenMatrix, Nest, Read
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir.dispatch import Dispatch, is_contraction
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, Const, Gather, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, Linear, TensorType, Value


@dataclass(frozen=True)
class _Choice:
    """A gather of a product's body, as a read of a matrix of its own."""

    node: Gather
    stack: Value
    count: int
    """Matrices of the stack."""
    matrix: Value
    places: IndexMap
    index: Arg
    chosen_at: tuple[Linear, ...]
    """Where the op reads the index."""


def with_chosen_matrices(nest: Nest) -> Nest:
    """The nest of a product with matrices of stacks as buffers; other nests are returned as they are."""
    roots = [root for root in nest.roots if root.reduces]
    if len(roots) != 1 or not is_contraction(roots[0].op):
        return nest
    op, guarded = _without_guard(roots[0].op)
    gathers = list(dict.fromkeys(node for node in walk(op.body) if isinstance(node, Gather)))
    choices = [choice for gather in gathers if (choice := _choice(nest, op, gather)) is not None]
    if not choices or len(choices) < len(gathers) or not _read_once(nest, choices):
        return nest
    changed = Nest(_dispatch(nest.dispatch, roots[0].op, op, choices))
    (root,) = (r for r in changed.roots if r.reduces)
    for choice in choices:
        at = [r.compose(root.index) for r in choice.chosen_at]
        index, place = changed.locate(op.inputs[choice.index.index], at)
        if index not in changed.inputs or not isinstance(place, Linear):
            return nest
        changed.matrices[choice.matrix] = ChosenMatrix(choice.count, index, place)
    changed.fixed = frozenset(loop for loop in changed.choosing if loop < changed.domain)
    if guarded is not None:
        if any(choice.index != guarded for choice in choices) or changed.fixed != changed.choosing:
            return nest
        changed.partial = True
    inside = {loop for read in changed.reads(root) if read.value in changed.matrices for loop in _loops(read)}
    return nest if changed.choosing & (inside | set(root.inner[-1:])) else changed


def _loops(read: Read) -> set[int]:
    return {loop for loop, _ in read.address.terms} if read.address is not None else set()


def _without_guard(op: Generic) -> tuple[Generic, Arg | None]:
    """A sum that is zero where a number is negative, as it is where that is not; and the number."""
    body = op.body
    if not isinstance(body, Apply) or body.op != "select":
        return op, None
    condition, summand, otherwise = body.args
    if not isinstance(otherwise, Const) or otherwise.value != 0 or not isinstance(condition, Apply):
        return op, None
    number, least = condition.args
    if condition.op != "ge" or not isinstance(number, Arg) or least != Const(0, DType.I64):
        return op, None
    return replace(op, body=summand), number


def _choice(nest: Nest, op: Generic, gather: Gather) -> _Choice | None:
    """A gather as a read of one matrix: of a whole buffer, at one computed place along the first axis."""
    stack = op.inputs[gather.operand]
    (number, *inner), shape = gather.indices, stack.type.shape
    if isinstance(number, Apply) and number.op == "max" and number.args[1] == Const(0, DType.I64):
        number = number.args[0]  # as numbers outside the stack are read anyway
    sizes = [extent for extent in shape if isinstance(extent, int)]
    if stack not in nest.inputs or not isinstance(number, Arg) or len(inner) < 2 or len(sizes) < len(shape):
        return None
    index_map = op.maps[number.index]
    if number.dtype is not DType.I64 or index_map is None or index_map.fill is not None:
        return None
    matrix = Value(f"{stack.name}.matrix", TensorType(shape[1:], stack.type.dtype))
    places = _places(op, inner, shape[1:])
    whole = isinstance(matrix.type.elements, int) and matrix.type.elements * stack.type.dtype.bits % 8 == 0
    if places is None or not whole:
        return None
    return _Choice(gather, stack, sizes[0], matrix, places, number, index_map.results)


def _places(op: Generic, indices: Sequence[Scalar], shape: Sequence[DimLike]) -> IndexMap | None:
    """Indices that are affine and surely inside."""
    affine = Affine(op.extents)
    results: list[Linear] = []
    for scalar, extent in zip(indices, shape, strict=True):
        linear = affine.linear(scalar)
        if linear is None or not within(linear, op.extents, extent):
            return None
        results.append(linear)
    return IndexMap(tuple(results))


def _read_once(nest: Nest, found: Sequence[_Choice]) -> bool:
    """Whether each stack is read by one gather and by nothing else."""
    stacks = {choice.stack for choice in found}
    reads = [value for op in nest.dispatch.ops for value in op.inputs if value in stacks]
    return len(found) == len(stacks) == len(reads)


def _dispatch(dispatch: Dispatch, op: Generic, bare: Generic, found: Sequence[_Choice]) -> Dispatch:
    """The dispatch over matrices in the place of stacks; ``bare`` is ``op`` without a guard."""
    matrices = {choice.stack: choice.matrix for choice in found}
    arguments: Mapping[Scalar, Scalar] = {
        choice.node: Arg(len(op.inputs) + i, choice.node.dtype) for i, choice in enumerate(found)
    }
    body = rewrite(bare.body, lambda n: arguments.get(n, n) if isinstance(n, Gather) else n)
    inputs = [*op.inputs, *(choice.matrix for choice in found)]
    product = with_reads(op, inputs, [*op.maps, *(choice.places for choice in found)], body)
    return replace(
        dispatch,
        ops=tuple(product if other is op else other for other in dispatch.ops),
        inputs=tuple(matrices.get(v, v) for v in dispatch.inputs),
        packable=frozenset(matrices.get(v, v) for v in dispatch.packable),
    )


# Kernels ------------------------------------------------------------------------------------------
def start_of_matrix(ev: Evaluator, memory: Memory) -> KValue | None:
    """The element of a stack with which the matrix begins that the bound loops choose; None for other
    memory. Numbers outside the stack are those of its nearest matrix, as in any gather."""
    value = ev.nest.buffers[memory.index] if isinstance(memory, Binding) else None
    matrix = ev.nest.matrices.get(value) if value is not None else None
    if matrix is None or value is None:
        return None
    if ev.vector is not None and ev.vector[0] in ev.nest.choosing:
        raise CodegenError(f"a vector of {ev.nest.dispatch.name} runs over matrices that are apart")
    b, vector, ev.vector = ev.b, ev.vector, None

    def emit() -> KValue:
        number = b.binary("min", _number(ev, matrix), b.const(matrix.count - 1, DType.I64))
        number = b.binary("max", number, b.const(0, DType.I64))
        elements = dims.floordiv(dims.mul(value.type.elements, value.type.dtype.bits), memory.dtype.bits)
        return b.mul(b.cast(number, b.index), ev.dim(elements))

    start = ev.once(("matrix", value, ev.place(matrix.place)), emit)
    ev.vector = vector
    return start


def holds(ev: Evaluator) -> KValue:
    """Whether there are matrices at the fixed loops (`Nest.partial`)."""
    matrix, *_ = ev.nest.matrices.values()
    return ev.b.compare("ge", _number(ev, matrix), ev.b.const(0, DType.I64))


def _number(ev: Evaluator, matrix: ChosenMatrix) -> KValue:
    """The number of a matrix at the bound loops."""
    return ev.b.load(ev.b.bindings[ev.binding_of[matrix.index]], ev.linear(matrix.place)[0])


def find_matrices(ev: Evaluator) -> None:
    """Emit where those matrices begin that the bound loops choose, once for all that follows."""
    for memory in ev.b.bindings:
        matrix = ev.nest.matrices.get(ev.nest.buffers[memory.index])
        places = matrix.place.terms if matrix is not None else ()
        if all(loop in ev.loops or dims.is_one(ev.nest.extents[loop]) for loop, _ in places):
            start_of_matrix(ev, memory)


def fix_points(ev: Evaluator) -> DimLike:
    """Fix the loops of the domain that choose matrices, each workgroup at one of their points, of which there
    are as many as is returned. A schedule's third coordinate is the kernel's divided by that."""
    b, loops = ev.b, sorted(ev.nest.fixed)
    points = ev.nest.total(loops)
    number = b.workgroup_id(2)
    b.ids = b.workgroup_id(0), b.workgroup_id(1), b.binary("div", number, ev.dim(points))
    point = b.binary("rem", number, ev.dim(points))
    for loop in reversed(loops[1:]):
        ev.bind([loop], b.binary("rem", point, ev.dim(ev.nest.extents[loop])))
        point = b.binary("div", point, ev.dim(ev.nest.extents[loop]))
    ev.bind(loops[:1], point)
    find_matrices(ev)
    return points
