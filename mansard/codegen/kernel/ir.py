"""The data of kernel IR.

A kernel is one function run by every invocation of a workgroup grid. On a CPU a workgroup is one
invocation and vectors (`KType.lanes` > 1) are the SIMD; on a GPU lanes are invocations and values are
scalars or short vectors. Control flow is structured (`For`, `If`); everything else is an `Inst`.

Instructions (``op``; args; result) — this table is the contract of the emitters:

=================  ==========================================================================
const              attrs value; any type (a vector constant is a splat of one value)
param              attrs index; word ``index`` of the params, truncated to the result's int type
workgroup_id       attrs axis (0..2); int
local_id           attrs axis; int (0 on a CPU)
load               [index]; attrs memory: Binding or SharedMemory. Scalar index: ``lanes`` consecutive
                   elements; vector index: one element per lane (gather). attrs aligned: bool says
                   a vector load's address is a multiple of its size
load_words         [index]; attrs memory: Binding, words: int. That many 32-bit words from the element at
                   ``index`` on, whatever the memory holds, as they lie in memory; the address is a
                   multiple of all the words' bytes together; i32 of as many lanes; GPU only
unpack             [words: i32]; attrs dtype, first: the numbers from number ``first`` on, as many as the
                   result has lanes, of those that lie in the words, lowest bits first: f16 or bf16 as
                   f32; i8, u8, i4 or u4 as i8 or u8, or as f32 or i32; GPU only
store              [index, value]; attrs memory; as load (vector index: scatter, lanes in order)
add sub mul        float or int, wrapping; float attrs exact: bool says that the instruction must
                   not be merged with others: no contraction, no algebra
div                float IEEE; int truncating (the divisor is never 0)
rem                int, truncating; float: exact fmod
neg abs            float or signed int
min max            float: NaN if either is NaN, with attrs loses_nan: bool maybe the other; int by signedness
fma                [a, b, c] float a*b+c; may round once or twice; attrs exact: bool as above
dot                [a, b, c] c plus, in each lane, the sum of the products of that lane's pairs of bf16
                   (c is f32) or quads of i8 or u8 (c is i32, wrapping): lane i of c belongs to
                   elements 2i, 2i+1 or 4i … 4i+3 of a and b. bf16: sums round in any order, and
                   subnormals may count as 0. More than one lane; no GPU code
dot_bytes          [a, b, c: i32 scalars]; attrs signed: (bool, bool) of a and b: c plus the sum of the
                   products of their four bytes, wrapping; GPU only
early              [i32 or i64 scalar]: the same, computed here; compilers move what is used late behind
                   waits, where it takes time
join_bytes         [four i32 scalars] to i32: the lowest byte of each, that of the first the lowest; GPU only
prefetch           [index]; attrs memory: a hint that the element is read soon; it may lie outside
                   the memory; no result
sqrt floor ceil    float; round is half to even
round trunc
round_bytes        [vector of f32] to i8 or u8; attrs zero, low, high: ints:
                   min(max(round(x) + zero, low), high), and 0 for NaN; CPU only
exp2_native        f32, the hardware's power of two: within 3 + 2 * |x| ulp; GPU only
and or xor not     int or bool
shl shr            int; shr is arithmetic on signed types; the amount is below the width
eq ne lt le gt ge  to bool; float: ordered, but ne is unordered
select             [cond, a, b]; cond has the lanes of the result or is scalar bool
cast               numeric conversion: float<->float, int->float, int->int (wrap or extend by the
                   source's signedness), float->int truncating and saturating (NaN: 0), bool->any
                   (0/1), any->bool (!= 0)
bitcast            same width per lane; of vectors of narrow types also to i32 words (PTX)
splat              [scalar] to ``lanes``
extract            [vector]; attrs lane
insert             [vector, scalar]; attrs lane
shuffle            [a, b]; attrs lanes: for each lane of the result, a lane of a followed by b
iota               0, 1, 2 … as int lanes
nibbles            [u8 vector] to i8, u8, bf16, f32; attrs signed: the two 4-bit integers of each byte, its
                   low half first; CPU only
float12            [u8 vector, u8 vector of half the lanes] to bf16: the bytes and the nibbles of floats of
                   12 bits (`mansard.ir.float12`); CPU only
reduce             [vector]; attrs combiner: add mul min max and or; any association
subgroup_reduce    [scalar]; attrs combiner; over the active invocations of the subgroup; attrs loses_nan
                   says that min and max may ignore NaN; attrs cluster: over the invocations whose
                   subgroup_lane has the same quotient by this power of two, all of which take part;
                   attrs stride: over those whose subgroup_lane has the same remainder by it
subgroup_reduce_each
                   [scalars, a power of two of them]; attrs combiner: add mul; invocation n has the
                   subgroup_reduce of number n modulo their count. All invocations of the subgroup take
                   part, and it has at least as many as there are operands
subgroup_scan      [scalar]; attrs combiner: add mul min max; over the active invocations of the subgroup up
                   to and with this one, in the order of their subgroup_lane
subgroup_id        int; which subgroup of the workgroup this is
subgroup_count     int; subgroups of the workgroup
subgroup_lane      int; this invocation's place in its subgroup
subgroup_size      int; invocations of a full subgroup
store_lane         [index, lane, value]; attrs memory: SharedMemory of vectors: one element of a vector;
                   the lane is an int below the vectors' lanes; GPU only
atomic             [index, value]; attrs memory, combiner: add min max (int or f32 add); no result
barrier            workgroup barrier, shared memory visible; attrs scope: "subgroup" for its subgroup only
matrix_load …      see `mansard.codegen.kernel.matrix`
warpgroup_product  see `mansard.codegen.kernel.warpgroups`
quad_products …    see `mansard.codegen.kernel.quad_products`
tile_products      see `mansard.codegen.kernel.tile_products`
stream_wait …      see `mansard.codegen.kernel.weight_streams`
=================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from mansard.dtypes import DType
from mansard.hal.exchanges import NO_EXCHANGE, Exchange

if TYPE_CHECKING:
    from mansard.codegen.kernel.weight_streams import StreamedKernel


@dataclass(frozen=True)
class Matrix:
    """A matrix that the invocations of a ``scope`` ("subgroup" or "workgroup") hold together.

    ``use`` says what it may be in a product: left factor "a", right factor "b", or the sum "c".
    """

    rows: int
    columns: int
    use: str
    scope: str = "subgroup"


@dataclass(frozen=True)
class KType:
    """A register type: element type and vector lanes (1: scalar). bool is one bit in a register.

    With ``matrix`` it is one of the matrices of `mansard.codegen.kernel.matrix`; lanes are 1 then.
    """

    dtype: DType
    lanes: int = 1
    matrix: Matrix | None = None

    def with_lanes(self, lanes: int) -> KType:
        """The same element type with other lanes."""
        return KType(self.dtype, lanes)

    def __str__(self) -> str:
        if self.matrix is not None:
            shape = f"{self.matrix.rows}x{self.matrix.columns} {self.matrix.use}"
            return f"{self.dtype.value}<{shape} {self.matrix.scope}>"
        return self.dtype.value if self.lanes == 1 else f"{self.dtype.value}<{self.lanes}>"


@dataclass(frozen=True, eq=False)
class KValue:
    """An SSA register."""

    id: int
    type: KType

    def __str__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True)
class Binding:
    """A buffer argument: element type in memory (bool is one byte) and whether it is written."""

    index: int
    dtype: DType
    writable: bool


@dataclass(frozen=True)
class SharedMemory:
    """Memory of one workgroup. On a CPU: memory of one invocation, on its stack.

    With ``lanes`` > 1 (GPU only) it is ``size`` whole vectors: an index counts vectors, and load and store
    move whole ones, which hardware does in one access.
    """

    index: int
    dtype: DType
    size: int
    lanes: int = 1


Memory = Union[Binding, SharedMemory]


@dataclass(frozen=True, eq=False)
class Inst:
    """One instruction; ``result`` is None for store, atomic, barrier and prefetch."""

    op: str
    args: tuple[KValue, ...]
    result: KValue | None
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class For:
    """``for index in range(lower, upper, step)`` with carried values; step is positive.

    ``carried`` are the block arguments, ``inits`` their first values, ``yields`` the next ones,
    ``results`` the values after the loop. ``unroll`` is a hint.
    """

    lower: KValue
    upper: KValue
    step: KValue
    index: KValue
    inits: tuple[KValue, ...]
    carried: tuple[KValue, ...]
    body: Block
    yields: tuple[KValue, ...]
    results: tuple[KValue, ...]
    unroll: int = 1


@dataclass(frozen=True, eq=False)
class If:
    """Run ``then`` when the scalar bool holds, else ``otherwise``; no results."""

    condition: KValue
    then: Block
    otherwise: Block


Node = Union[Inst, For, If]


@dataclass(eq=False)
class Block:
    """Nodes in execution order."""

    nodes: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """Every node, outer before inner."""
        for node in self.nodes:
            yield node
            if isinstance(node, For):
                yield from node.body.walk()
            elif isinstance(node, If):
                yield from node.then.walk()
                yield from node.otherwise.walk()

    def uses(self, ops: Collection[str]) -> bool:
        """Whether any instruction in it is one of ``ops``."""
        return any(isinstance(node, Inst) and node.op in ops for node in self.walk())


@dataclass(frozen=True, eq=False)
class Kernel:
    """A finished kernel. ``workgroup`` is (1, 1, 1) on a CPU."""

    name: str
    bindings: tuple[Binding, ...]
    params: int
    workgroup: tuple[int, int, int]
    shared: tuple[SharedMemory, ...]
    body: Block
    index: DType
    """I32 or I64: the type of index arithmetic."""
    subgroup: int = 0
    """Invocations that a subgroup must have for the kernel to be right; 0: any number will do."""
    streamed: StreamedKernel | None = None
    """The same for persistent kernels, which copy its constants ahead."""
    exchange: Exchange = NO_EXCHANGE
    """What it may pass on within a persistent kernel (`mansard.codegen.kernel.exchanges`)."""
    lookups: frozenset[int] = frozenset()
    """The bindings that are tables: maps alone read them, at computed places."""

    def __str__(self) -> str:
        from mansard.codegen.kernel.printer import print_kernel

        return print_kernel(self)
