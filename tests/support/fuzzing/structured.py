"""One structured op at a time, of any shape and element type, with what PyTorch computes for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from mansard.dtypes import DType
from mansard.ir import Graph, GraphBuilder, IndexMap
from mansard.ir.combiners import ARG_COMBINERS, ARITHMETIC_COMBINERS, COMBINERS, accepts
from mansard.ir.scalar import Arg, Gather, Index
from support.fuzzing import framework
from support.fuzzing.case import Array, Arrays, Case, exact_for
from support.fuzzing.comparison import Tolerance
from support.fuzzing.values import DTYPES, exact, flushed, mixed, sprinkled

Draw = Callable[[st.SearchStrategy[Any]], Any]

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129)
"""Sizes at and beside widths of vectors, tiles and workgroups."""
MOST_ELEMENTS = 20_000


def shapes(draw: Draw, least: int = 0, largest: int = 4, *, empty: bool = True) -> tuple[int, ...]:
    """A shape of ``least`` to ``largest`` dims, rarely with one of no extent."""
    rank = draw(st.integers(least, largest))
    shape: list[int] = []
    for _ in range(rank):
        room = MOST_ELEMENTS // max(1, math.prod(shape))
        shape.append(draw(st.sampled_from([e for e in EXTENTS if e <= room] or [1])))
    if empty and rank and draw(st.integers(0, 11)) == 11:
        shape[draw(st.integers(0, rank - 1))] = 0
    return tuple(shape)


def generator(draw: Draw) -> np.random.Generator:
    """Random numbers that shrink to those of one seed."""
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


def dtypes(draw: Draw, *, without: tuple[DType, ...] = ()) -> DType:
    """An element type."""
    return draw(st.sampled_from([d for d in (DType.F32, *DTYPES) if d not in without]))


def exactly_combined(draw: Draw, combiner: str, dtype: DType, shape: tuple[int, ...], length: int) -> Array:
    """Values, ``length`` of which combine to the same in any order; NaN and infinities among them."""
    rng = generator(draw)
    if not dtype.is_float or combiner not in ("add", "mul"):
        return (
            flushed(mixed(rng, dtype, shape))
            if dtype is not DType.BF16
            else sprinkled(rng, exact(rng, dtype, shape), 0.1)
        )
    if combiner == "add":
        values = exact(rng, dtype, shape, 1 if dtype is DType.F8 else 4)
    else:
        # Powers of two whose product stays in range however it is grouped; zeros make NaN of infinities.
        span = {DType.F64: 1000, DType.F8: 5}.get(dtype, 100 if dtype is not DType.F16 else 10) // max(
            length, 1
        )
        powers = rng.integers(-span, span + 1, shape) if span else np.zeros(shape, np.int64)
        values = (np.ldexp(1.0, powers) * rng.choice([-1.0, 1.0], shape)).astype(dtype.numpy)
    return (
        sprinkled(rng, values, draw(st.sampled_from([0.0, 0.0, 0.02]))) if dtype is not DType.F8 else values
    )


def torch_of(
    function: Callable[..., Any], inputs: list[DType], outputs: list[DType]
) -> Callable[[Arrays], list[Array]]:
    """A function on tensors as one on arrays."""

    def compute(arrays: Arrays) -> list[Array]:
        results = function(*[framework.tensor(a, d) for a, d in zip(arrays, inputs, strict=True)])
        results = results if isinstance(results, tuple) else (results,)
        return [framework.array(r, d) for r, d in zip(results, outputs, strict=True)]

    return compute


def widened(function: Callable[..., Any], dtype: DType) -> Callable[..., Any]:
    """``function`` in f32 for narrow floats, as the Graph accumulates them, rounded at the end."""
    if dtype not in (DType.F16, DType.BF16, DType.F8):
        return function
    narrow = framework.TORCH_DTYPES[dtype]

    def compute(*tensors: torch.Tensor) -> Any:
        result = function(*[t.float() if t.dtype is narrow else t for t in tensors])
        results = result if isinstance(result, tuple) else (result,)
        rounded = tuple(r.to(narrow) if r.dtype is torch.float32 else r for r in results)
        return rounded if isinstance(result, tuple) else rounded[0]

    return compute


# Reductions and scans -----------------------------------------------------------------------
@st.composite
def reductions(draw: Draw) -> Case:
    """One or more dims of an operand, anywhere in it, by every combiner."""
    combiner = draw(st.sampled_from(COMBINERS))
    dtype = draw(st.sampled_from([d for d in DTYPES if accepts(combiner, d)]))
    shape = shapes(draw, 1)
    count = 1 if combiner in ARG_COMBINERS else draw(st.integers(1, len(shape)))
    axes = sorted(draw(st.permutations(range(len(shape))))[:count])
    if combiner in ARG_COMBINERS and shape[axes[0]] == 0:
        shape = tuple(max(d, 1) for d in shape)
    kept = [i for i in range(len(shape)) if i not in axes]
    order = [*kept, *axes]
    b = GraphBuilder("reduction")
    x = b.input("x", shape, dtype)
    reads = IndexMap.of_dims([order.index(i) for i in range(len(shape))])
    extents = [shape[i] for i in order]
    y = b.generic([x], [reads], extents, Arg(0, dtype), reduced=count, combiner=combiner, name=combiner)
    graph = b.build([y])
    data = exactly_combined(draw, combiner, dtype, shape, math.prod(shape[i] for i in axes))
    zeros = Tolerance(zero_sign=False)
    return Case("reduction", graph, ((data,),), (zeros,), framework=_reduced(combiner, dtype, axes))


def _reduced(combiner: str, dtype: DType, axes: list[int]) -> Callable[[Arrays], list[Array]] | None:
    if combiner in ("and", "or") and dtype is not DType.BOOL:
        return None  # PyTorch reduces truth values only

    def function(x: torch.Tensor) -> torch.Tensor:
        # Indices of PyTorch are not defined on bool.
        x = x.to(torch.uint8) if combiner in ARG_COMBINERS and x.dtype is torch.bool else x
        for axis in reversed(axes):
            x = framework.COMBINERS[combiner](x, axis)
        return x

    result = DType.I64 if combiner in ARG_COMBINERS else dtype
    # PyTorch has no least or largest value of nothing.
    defined = widened(function, dtype)
    compute = torch_of(defined, [dtype], [result])

    def unless_empty(arrays: Arrays) -> list[Array]:
        if combiner in ("min", "max") and arrays[0].size == 0:
            raise NotImplementedError
        return compute(arrays)

    return unless_empty


@st.composite
def scans(draw: Draw) -> Case:
    """Running combinations along any axis."""
    combiner, dtype = draw(st.sampled_from(ARITHMETIC_COMBINERS)), dtypes(draw, without=(DType.BOOL,))
    shape = shapes(draw, 1, 3)
    axis, inclusive = draw(st.integers(0, len(shape) - 1)), draw(st.booleans())
    b = GraphBuilder("scan")
    y = b.scan(b.input("x", shape, dtype), axis, combiner, inclusive)
    data = exactly_combined(draw, combiner, dtype, shape, shape[axis])
    function = widened(lambda x: framework.SCANS[combiner](x, axis), dtype)
    compute = torch_of(function, [dtype], [dtype]) if inclusive else None
    return Case("scan", b.build([y]), ((data,),), (Tolerance(zero_sign=False),), framework=compute)


# Order --------------------------------------------------------------------------------------
@st.composite
def sorts(draw: Draw) -> Case:
    """Whole lines in order, or their first entries; many entries are equal."""
    dtype, shape = dtypes(draw), shapes(draw, 1, 3)
    axis, descending = draw(st.integers(0, len(shape) - 1)), draw(st.booleans())
    limit = draw(st.one_of(st.none(), st.integers(0, shape[axis])))
    b = GraphBuilder("sort")
    values, order = b.sort(b.input("x", shape, dtype), axis, descending, limit)
    rng = generator(draw)
    data = exact(rng, dtype, shape, 2) if draw(st.booleans()) else mixed(rng, dtype, shape)
    if dtype.is_float:
        data = sprinkled(rng, flushed(data), 0.1)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, order = torch.sort(x, dim=axis, descending=descending, stable=True)
        return values.narrow(axis, 0, shape[axis] if limit is None else limit), order.narrow(
            axis, 0, shape[axis] if limit is None else limit
        )

    compute = torch_of(widened(function, dtype), [dtype], [dtype, DType.I64])
    graph = b.build([values, order])
    return Case("sort", graph, ((data,),), exact_for(graph), framework=compute)


# Movement -----------------------------------------------------------------------------------
@st.composite
def movements(draw: Draw) -> Case:
    """Concat, Pad, Slice, Reshape and transposition, whose results are the operands' bits."""
    kind = draw(st.sampled_from(["concat", "pad", "slice", "reshape", "transpose", "broadcast"]))
    dtype, shape, b = (
        dtypes(draw),
        shapes(draw, 0 if kind in ("reshape", "broadcast") else 1),
        GraphBuilder(kind),
    )
    rng = generator(draw)
    x = b.input("x", shape, dtype)
    data, rank = [mixed(rng, dtype, shape)], len(shape)
    if kind == "concat":
        axis = draw(st.integers(0, rank - 1))
        others = []
        for _ in range(draw(st.integers(0, 3))):
            part = tuple(
                draw(st.sampled_from((0, 1, 3, 16))) if i == axis else d for i, d in enumerate(shape)
            )
            others.append(b.input("y", part, dtype))
            data.append(mixed(rng, dtype, part))
        y = b.concat([x, *others], axis)

        def function(*ts):
            return torch.cat([t.clone() for t in ts], axis)

    elif kind == "pad":
        low = [draw(st.integers(0, 3)) for _ in shape]
        high = [draw(st.integers(0, 3)) for _ in shape]
        value = _literal(draw, dtype)
        y = b.pad(x, low, high, value)
        widths = [n for lo, hi in zip(reversed(low), reversed(high), strict=True) for n in (lo, hi)]

        def function(t):
            if dtype not in (DType.I64, DType.U64):
                return torch.nn.functional.pad(t, widths, value=value)
            sizes = [lo + d + hi for lo, d, hi in zip(low, t.shape, high, strict=True)]
            padded = framework.tensor(np.full(sizes, value, dtype.numpy), dtype)  # pad's value is a double
            padded[tuple(slice(lo, lo + d) for lo, d in zip(low, t.shape, strict=True))] = t
            return padded

    elif kind == "slice":
        strides = [draw(st.integers(1, 3)) for _ in shape]
        offsets = [draw(st.integers(0, max(d - 1, 0))) for d in shape]
        sizes = [
            draw(st.integers(0, max(0, -(-(d - o) // s))))
            for d, o, s in zip(shape, offsets, strides, strict=True)
        ]
        y = b.slice(x, offsets, sizes, strides)
        parts = [slice(o, o + n * s, s) for o, n, s in zip(offsets, sizes, strides, strict=True)]

        def function(t):
            return t[tuple(parts)].clone()

    elif kind == "reshape":
        other = _same_elements(draw, shape)
        y = b.reshape(x, other)

        def function(t):
            return t.reshape(other)

    elif kind == "transpose":
        order = draw(st.permutations(range(rank)))
        back = [order.index(i) for i in range(rank)]
        y = b.generic([x], [IndexMap.of_dims(back)], [shape[o] for o in order], Arg(0, dtype))

        def function(t):
            return t.permute(*order).clone()

    else:
        wider = (*([draw(st.sampled_from((1, 3, 16)))] if rank < 4 else []), *(d for d in shape))
        reads = [None if d == 1 else i + len(wider) - rank for i, d in enumerate(shape)]
        wider = tuple(
            draw(st.sampled_from((1, 4, 17))) if d == 1 and math.prod(wider) < 2000 else d for d in wider
        )
        y = b.generic([x], [IndexMap.of_dims(reads)], wider, Arg(0, dtype))

        def function(t):
            return t.expand(wider).clone()

    graph = b.build([y])
    types = [dtype] * len(data)
    compute = torch_of(function, types, [dtype]) if dtype is not DType.F8 or kind != "pad" else None
    return Case(kind, graph, (tuple(data),), exact_for(graph), carried=True, framework=compute)


def _literal(draw: Draw, dtype: DType) -> float | int | bool:
    if dtype is DType.BOOL:
        return draw(st.booleans())
    if dtype.is_float:
        return draw(
            st.sampled_from([0.0, -1.5, 1.0] + ([math.inf, -math.inf] if dtype is not DType.F8 else []))
        )
    info = np.iinfo(dtype.numpy)
    return draw(st.sampled_from([0, 1, int(info.min), int(info.max)]))


def _same_elements(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape with as many elements."""
    left = math.prod(shape)
    if left == 0:
        return (*draw(st.permutations(shape)),)
    out = []
    for _ in range(draw(st.integers(0, 3))):
        out.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
        left //= out[-1]
    return (*out, left) if left > 1 or (not out and draw(st.booleans())) else tuple(out)


# Computed places ----------------------------------------------------------------------------
@st.composite
def scatters(draw: Draw) -> Case:
    """Rows to places that repeat, some of them outside."""
    dtype, target = dtypes(draw), shapes(draw, 1, 3)
    combiner = draw(st.sampled_from([None, *ARITHMETIC_COMBINERS])) if dtype is not DType.BOOL else None
    width, rows = draw(st.integers(1, len(target))), draw(st.sampled_from([0, 1, 2, 5, 17, 40]))
    b = GraphBuilder("scatter")
    operands = [
        b.input("target", target, dtype),
        b.input("indices", (rows, width), DType.I64),
        b.input("updates", (rows, *target[width:]), dtype),
    ]
    graph = b.build([b.scatter(*operands, combiner)])  # type: ignore[misc]
    rng = generator(draw)
    columns = [rng.integers(-1, max(d, 1) + 1, rows) for d in target[:width]]
    indices = np.stack(columns, axis=1).astype(np.int64).reshape(rows, width)
    if rows and draw(st.booleans()):
        indices[rng.integers(0, rows), 0] = rng.choice([2**40, -(2**63), 2**63 - 1, 2**31])
    data = exactly_combined(draw, combiner or "add", dtype, target, rows + 1)
    updates = exactly_combined(draw, combiner or "add", dtype, (rows, *target[width:]), rows + 1)
    tolerances = (Tolerance(zero_sign=combiner is None),)
    return Case("scatter", graph, ((data, indices, updates),), tolerances)


@st.composite
def gathers(draw: Draw) -> Case:
    """Rows of a table by indices, those outside clamped."""
    dtype = dtypes(draw)
    rows, columns, count = (draw(st.sampled_from(EXTENTS)) for _ in range(3))
    b = GraphBuilder("gather")
    ids, table = b.input("ids", (count,), DType.I64), b.input("table", (rows, columns), dtype)
    body = Gather(1, (Arg(0, DType.I64), Index(1)), dtype)
    graph = b.build([b.generic([ids, table], [IndexMap.of_dims([0]), None], (count, columns), body)])
    rng = generator(draw)
    indices = rng.integers(-2, rows + 2, count)
    indices[rng.integers(0, count)] = rng.choice([2**40, -(2**63), 2**63 - 1])

    def function(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return table[ids.clamp(0, rows - 1)].clone()

    compute = torch_of(widened(function, dtype), [DType.I64, dtype], [dtype])
    return Case(
        "gather",
        graph,
        ((indices, mixed(rng, dtype, (rows, columns))),),
        exact_for(graph),
        carried=True,
        framework=compute,
    )


# Attention ----------------------------------------------------------------------------------
@st.composite
def attentions(draw: Draw) -> Case:
    """Grouped heads, masks of both kinds, rows that see nothing."""
    dtype = draw(st.sampled_from([DType.F32, DType.F32, DType.F16, DType.BF16]))
    batch, groups, key_heads = (draw(st.integers(1, 2)) for _ in range(3))
    rows, length = (draw(st.sampled_from([1, 2, 5, 16, 33, 70])) for _ in range(2))
    depth, columns = (draw(st.sampled_from([1, 4, 16, 24, 64])) for _ in range(2))
    heads, causal = groups * key_heads, draw(st.booleans())
    mask = draw(st.sampled_from([None, DType.BOOL, dtype]))
    b = GraphBuilder("attention")
    q = b.input("q", (batch, heads, rows, depth), dtype)
    k, v = (
        b.input("k", (batch, key_heads, length, depth), dtype),
        b.input("v", (batch, key_heads, length, columns), dtype),
    )
    rng = generator(draw)
    data = [rng.standard_normal(i.type.shape).astype(dtype.numpy) for i in (q, k, v)]
    m = None
    if mask is not None:
        shape = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])), rows, length)
        m = b.input("m", shape, mask)
        kept = rng.random(shape) < 0.6
        if mask is DType.BOOL:
            kept[:, :, rng.integers(0, rows)] = False
            data.append(kept)
        else:
            kept[..., 0] = True
            data.append(np.where(kept, rng.standard_normal(shape), -np.inf).astype(dtype.numpy))
    scale = draw(st.sampled_from([0.125, 0.3, 1.0]))
    graph = b.build([b.attention(q, k, v, m, scale, causal)])
    scaled = {DType.F32: 1e-5, DType.F16: 2e-3, DType.BF16: 1.6e-2}[dtype]
    return Case(
        "attention",
        graph,
        (tuple(data),),
        (Tolerance(scaled=scaled, zero_sign=False),),
        framework=_attended(scale, causal, dtype, mask),
    )


def _attended(
    scale: float, causal: bool, dtype: DType, mask: DType | None
) -> Callable[[Arrays], list[Array]]:
    def function(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor | None = None
    ) -> torch.Tensor:
        rows, length = q.shape[2], k.shape[2]
        if causal:
            seen = torch.ones(rows, length, dtype=torch.bool).tril()
            if m is not None:
                seen = m & seen if m.dtype is torch.bool else m.masked_fill(~seen, -math.inf)
            m = seen
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, m, scale=scale, enable_gqa=True)

    return torch_of(widened(function, dtype), [dtype] * 3 + ([mask] if mask else []), [dtype])


PROPERTIES: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "reduction": reductions, "scan": scans, "sort": sorts, "movement": movements, "scatter": scatters,
    "gather": gathers, "attention": attentions,
}  # fmt: skip
"""Strategies by name."""

__all__ = ["PROPERTIES", "Draw", "Graph", "dtypes", "generator", "shapes"]
