"""Random graphs: chains and DAGs of ops over a few shapes, some of whose dims are symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder, IndexMap, Linear
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index, Scalar
from support.fuzzing.case import Case
from support.fuzzing.comparison import Tolerance
from support.fuzzing.structured import Draw, generator
from support.fuzzing.tracked import FUNCTION_ERROR, Tracked, fits, most, most_elements
from support.fuzzing.values import exact, sprinkled

BASES = (
    DType.F32,
    DType.F32,
    DType.F32,
    DType.F64,
    DType.F16,
    DType.BF16,
    DType.I64,
    DType.I32,
    DType.I8,
    DType.U8,
)
MOST_ELEMENTS = 6000
MOST_OPS = 10
_TOP = 4


class Growth:
    """A graph under construction: the values so far, and a step that adds one."""

    def __init__(self, draw: Draw) -> None:
        self.draw, self.b = draw, GraphBuilder("random")
        self.base: DType = draw(st.sampled_from(BASES))
        self.rng = generator(draw)
        self.symbols = [Dim("s", 1, 20)][: draw(st.integers(0, 1))] + [Dim("t", 4, 32, 4)][
            : draw(st.integers(0, 1))
        ]
        axes: list[DimLike] = [draw(st.sampled_from([1, 2, 3, 5, 8, 16, 17])) for _ in range(3)]
        symbols = [dims.symbol(s) for s in self.symbols]
        for i, symbol in enumerate(symbols):
            axes[i] = symbol
        self.axes = axes
        self.values = [self.input(f"x{i}") for i in range(draw(st.integers(1, 3)))]
        # A symbol is bound by an input of its own dim.
        for i in range(len(symbols)):
            self.values.append(self.known(self.b.input(f"bind{i}", (axes[i],), self.base)))

    def known(self, value: Any) -> Tracked:
        return Tracked(value, float(_TOP), 0.25 if self.base.is_float else 1.0)

    def input(self, name: str) -> Tracked:
        rank = self.draw(st.integers(0, 3))
        shape = tuple(self.draw(st.sampled_from([*self.axes, 1])) for _ in range(rank))
        return self.known(
            self.b.input(name, shape if most_elements(shape) <= MOST_ELEMENTS else shape[:2], self.base)
        )

    # Growing ------------------------------------------------------------------------------------
    def grow(self) -> None:
        """Add the result of one step, if it applies."""
        step = self.draw(st.sampled_from(STEPS))
        result = step(self, self.draw(st.sampled_from(self.values)))
        if result is not None and most_elements(result.shape) <= MOST_ELEMENTS:
            self.values.append(result)

    def emit(
        self, inputs: Sequence[Tracked], maps: Sequence[IndexMap], extents: Sequence[DimLike], body: Scalar,
        bound: float, quantum: float, error: float = 0.0, **reduction: Any,
    ) -> Tracked:  # fmt: skip
        value = self.b.generic([t.value for t in inputs], list(maps), extents, body, **reduction)
        return Tracked(value, bound, quantum, error)

    def mapped(self, x: Tracked, body: Scalar, bound: float, quantum: float, error: float = 0.0) -> Tracked:
        return self.emit([x], [IndexMap.identity(len(x.shape))], x.shape, body, bound, quantum, error)

    def literal(self, value: float, dtype: DType) -> Const:
        return Const(value if dtype.is_float else int(value), dtype)

    def operand_map(self, y: Tracked, extents: Sequence[DimLike]) -> IndexMap | None:
        """How ``y`` is read beside a result of ``extents``, by the rules of broadcasting."""
        skipped = len(extents) - len(y.shape)
        if skipped < 0:
            return None
        indices: list[int | None] = []
        for i, d in enumerate(y.shape):
            if d == extents[skipped + i]:
                indices.append(skipped + i)
            elif d == 1:
                indices.append(None)
            else:
                return None
        return IndexMap.of_dims(indices)

    # Steps ----------------------------------------------------------------------------------------
    def unary(self, x: Tracked) -> Tracked | None:
        a, dtype = Arg(0, x.dtype), x.dtype
        names = ["neg", "abs", "relu", "clamp"] + ["floor", "ceil", "round", "trunc", "sign"] * x.exact
        name = self.draw(st.sampled_from(names))
        if name == "relu":
            return self.mapped(
                x, Apply("max", (a, self.literal(0, dtype)), dtype), x.bound, x.quantum, x.error
            )
        if name == "clamp":
            low, high = (-2.0 if dtype.is_signed else 0.0), 2.0
            inner = Apply("max", (a, self.literal(low, dtype)), dtype)
            body = Apply("min", (inner, self.literal(high, dtype)), dtype)
            return self.mapped(x, body, 2.0, min(x.quantum, 1.0), x.error)
        body = Apply(name, (a,), dtype)
        if name in ("neg", "abs"):
            return self.mapped(x, body, x.bound, x.quantum, x.error)
        return self.mapped(x, body, x.bound + 1, 1.0)

    def binary(self, x: Tracked) -> Tracked | None:
        partners = [y for y in self.values if y.dtype is x.dtype and self.operand_map(y, x.shape) is not None]
        y = self.draw(st.sampled_from(partners))
        name = self.draw(st.sampled_from(["add", "sub", "mul", "min", "max", "select"]))
        args, quantum = (Arg(0, x.dtype), Arg(1, x.dtype)), min(x.quantum, y.quantum)
        bound, error = max(x.bound, y.bound), x.error + y.error
        if name in ("add", "sub"):
            bound = x.bound + y.bound
        elif name == "mul":
            quantum, error = x.quantum * y.quantum, x.error * y.bound + y.error * x.bound + x.error * y.error
            bound = x.bound * y.bound
        if (error == 0.0 and not fits(x.dtype, bound, quantum)) or bound > 1e4:
            return None
        body = Apply(name, args, x.dtype)
        if name == "select":
            if error:
                return None
            test = self.draw(st.sampled_from(["lt", "le", "eq", "ne", "gt", "ge"]))
            body = Apply("select", (Apply(test, args, DType.BOOL), *args), x.dtype)
        maps = [IndexMap.identity(len(x.shape)), self.operand_map(y, x.shape)]
        rounding = 0.0 if error == 0.0 else self.rounding(x.dtype) * bound
        return self.emit([x, y], maps, x.shape, body, bound, quantum, error + rounding)  # type: ignore[arg-type]

    def rounding(self, dtype: DType) -> float:
        return {DType.F16: 2.0**-10, DType.BF16: 2.0**-7}.get(dtype, FUNCTION_ERROR)

    def function(self, x: Tracked) -> Tracked | None:
        """Smooth functions with known slopes."""
        if not x.dtype.is_float:
            return None
        a, dtype = Arg(0, x.dtype), x.dtype
        name = self.draw(st.sampled_from(["tanh", "exp", "sigmoid", "rsqrt", "erf", "sin", "atan"]))
        one = self.literal(1.0, dtype)
        if name == "exp":
            inner = Apply("min", (a, self.literal(2.0, dtype)), dtype)
            body, bound, slope = Apply("exp", (inner,), dtype), 7.5, 7.5
        elif name == "sigmoid":
            exponential = Apply("exp", (Apply("neg", (a,), dtype),), dtype)
            body, bound, slope = (
                Apply("div", (one, Apply("add", (one, exponential), dtype)), dtype),
                1.0,
                0.25,
            )
        elif name == "rsqrt":
            square = Apply("add", (Apply("mul", (a, a), dtype), one), dtype)
            body, bound, slope = Apply("rsqrt", (square,), dtype), 1.0, 0.5
        else:
            body, bound, slope = Apply(name, (a,), dtype), 1.6, 1.2
        if x.bound > 100:
            return None
        # What a body of several steps rounds to its narrow type differs by where it is rounded.
        return self.mapped(x, body, bound, 1.0, slope * x.error + 4 * self.rounding(dtype) * bound)

    def reduce(self, x: Tracked) -> Tracked | None:
        rank = len(x.shape)
        if rank == 0:
            return None
        count = self.draw(st.integers(1, rank))
        axes = sorted(self.draw(st.permutations(range(rank)))[:count])
        combiner = self.draw(st.sampled_from(["add", "min", "max"]))
        points = most_elements(tuple(x.shape[i] for i in axes))
        bound = x.bound * points if combiner == "add" else x.bound
        if (x.exact and not fits(x.dtype, bound, x.quantum)) or bound > 1e4:
            return None
        kept = [i for i in range(rank) if i not in axes]
        order = [*kept, *axes]
        reads = IndexMap.of_dims([order.index(i) for i in range(rank)])
        extents = [x.shape[i] for i in order]
        error = (
            x.error
            if combiner != "add"
            else x.error * points + (0.0 if x.exact else self.rounding(x.dtype) * bound)
        )
        result = self.emit(
            [x], [reads], extents, Arg(0, x.dtype), bound, x.quantum, error, reduced=count, combiner=combiner
        )
        if not self.draw(st.booleans()):
            return result
        shape = [1 if i in axes else d for i, d in enumerate(x.shape)]
        return Tracked(self.b.reshape(result.value, shape), bound, x.quantum, error)

    def product(self, x: Tracked) -> Tracked | None:
        """By a constant or another value, along the last dim."""
        if not x.shape:
            return None
        depth, points = x.shape[-1], most(x.shape[-1])
        partners = [
            y for y in self.values if y.dtype is x.dtype and len(y.shape) == 2 and y.shape[0] == depth
        ]
        if partners and self.draw(st.booleans()):
            y = self.draw(st.sampled_from(partners))
        elif isinstance(depth, int):
            columns = self.draw(st.sampled_from([1, 5, 16, 33]))
            data = exact(self.rng, x.dtype, (depth, columns), 2)
            y = Tracked(
                self.b.constant("w", Constant.of(data, "w"), data.shape, x.dtype),
                2.0,
                0.25 if x.dtype.is_float else 1,
            )
        else:
            return None
        bound, quantum = points * x.bound * y.bound, x.quantum * y.quantum
        error = points * (x.error * y.bound + y.error * x.bound)
        if (error == 0.0 and not fits(x.dtype, bound, quantum)) or bound > 1e4:
            return None
        rank = len(x.shape)
        extents = (*x.shape[:-1], y.shape[1], depth)
        maps = [IndexMap.of_dims([*range(rank - 1), rank]), IndexMap.of_dims([rank, rank - 1])]
        body = Apply("mul", (Arg(0, x.dtype), Arg(1, x.dtype)), x.dtype)
        error += 0.0 if error == 0.0 else self.rounding(x.dtype) * bound
        return self.emit([x, y], maps, extents, body, bound, quantum, error, reduced=1, combiner="add")

    def move(self, x: Tracked) -> Tracked | None:
        rank, b = len(x.shape), self.b
        kind = self.draw(
            st.sampled_from(["transpose", "merge", "split", "slice", "concat", "pad", "expand", "roll"])
        )
        value = None
        if kind == "transpose" and rank > 1:
            order = self.draw(st.permutations(range(rank)))
            reads = IndexMap.of_dims([order.index(i) for i in range(rank)])
            value = b.generic([x.value], [reads], [x.shape[o] for o in order], Arg(0, x.dtype))
        elif kind == "merge" and rank > 1:
            i = self.draw(st.integers(0, rank - 2))
            value = b.reshape(
                x.value, (*x.shape[:i], dims.mul(x.shape[i], x.shape[i + 1]), *x.shape[i + 2 :])
            )
        elif kind == "split" and rank:
            i = self.draw(st.integers(0, rank - 1))
            d = x.shape[i]
            if isinstance(d, int):
                inner = self.draw(st.sampled_from([n for n in range(1, d + 1) if d % n == 0]))
                value = b.reshape(x.value, (*x.shape[:i], d // inner, inner, *x.shape[i + 1 :]))
        elif kind == "slice" and rank:
            offsets = [self.draw(st.integers(0, d - 1)) if isinstance(d, int) else 0 for d in x.shape]
            strides = [self.draw(st.integers(1, 2)) if isinstance(d, int) else 1 for d in x.shape]
            sizes = [
                -(-(d - o) // s) if isinstance(d, int) else d
                for d, o, s in zip(x.shape, offsets, strides, strict=True)
            ]
            value = b.slice(x.value, offsets, sizes, strides)
        elif kind == "concat" and rank:
            axis = self.draw(st.integers(0, rank - 1))
            other = self.draw(st.sampled_from([y for y in self.values if y.value.type == x.value.type]))
            joined = b.concat([x.value, other.value], axis)
            return Tracked(
                joined, max(x.bound, other.bound), min(x.quantum, other.quantum), max(x.error, other.error)
            )
        elif kind == "pad" and rank:
            low, high = ([self.draw(st.integers(0, 2)) for _ in x.shape] for _ in range(2))
            value = b.pad(x.value, low, high, self.literal(1, x.dtype).value)
            return Tracked(value, max(x.bound, 1.0), min(x.quantum, 1.0), x.error)
        elif kind == "expand" and rank < 3:
            front = self.draw(st.sampled_from([*self.axes, 2]))
            value = b.generic(
                [x.value], [IndexMap.of_dims(range(1, rank + 1))], (front, *x.shape), Arg(0, x.dtype)
            )
        elif kind == "roll" and rank and isinstance(x.shape[0], int):
            moved = Apply(
                "rem",
                (Apply("add", (Index(0), Const(1, DType.I64)), DType.I64), Const(x.shape[0], DType.I64)),
                DType.I64,
            )
            gather = Gather(0, (moved, *(Index(i) for i in range(1, rank))), x.dtype)
            value = b.generic([x.value], [None], x.shape, gather)
        return None if value is None else Tracked(value, x.bound, x.quantum, x.error)

    def window(self, x: Tracked) -> Tracked | None:
        """Three neighbours along the last dim, those outside being a fill value."""
        combiner = self.draw(st.sampled_from(["add", "max"]))
        if not x.shape or (combiner == "add" and x.exact and not fits(x.dtype, 3 * x.bound, x.quantum)):
            return None
        rank = len(x.shape)
        last = Linear(((rank - 1, 1), (rank, 1)), -1)
        reads = IndexMap(
            (*(Linear.dim(i) for i in range(rank - 1)), last), fill=0.0 if x.dtype.is_float else 0
        )
        error = 0.0 if x.exact else 3 * x.error + self.rounding(x.dtype) * 3 * x.bound
        return self.emit(
            [x],
            [reads],
            (*x.shape, 3),
            Arg(0, x.dtype),
            3 * x.bound,
            x.quantum,
            error,
            reduced=1,
            combiner=combiner,
        )

    def convert(self, x: Tracked) -> Tracked | None:
        """To a type that holds the numbers, and on to the base type."""
        if not x.exact:
            return None
        target = self.draw(
            st.sampled_from([DType.F32, DType.F64, DType.BF16, DType.F16, DType.I32, DType.I64, DType.I16])
        )
        quantum = max(x.quantum, 1.0) if target.is_int else x.quantum
        body = Cast(Cast(Arg(0, x.dtype), target), self.base)
        # Rounded to fewer bits, a bound may round up.
        bound = x.bound * (1.01 if target in (DType.BF16, DType.F16) else 1.0)
        return self.mapped(x, body, bound, quantum) if fits(self.base, bound, quantum) else None

    def order(self, x: Tracked) -> Tracked | None:
        """Sorts, scans and the places of extremes."""
        if not x.exact or not x.shape:
            return None
        axis = self.draw(st.integers(0, len(x.shape) - 1))
        kind = self.draw(st.sampled_from(["sort", "top", "scan", "argmax"]))
        if kind == "scan":
            bound = x.bound * most(x.shape[axis])
            if not fits(x.dtype, bound, x.quantum) or bound > 1e4:
                return None
            return Tracked(self.b.scan(x.value, axis), bound, x.quantum)
        if kind == "argmax":
            rank = len(x.shape)
            order = [*(i for i in range(rank) if i != axis), axis]
            reads = IndexMap.of_dims([order.index(i) for i in range(rank)])
            extents = [x.shape[i] for i in order]
            places = self.b.generic(
                [x.value], [reads], extents, Arg(0, x.dtype), reduced=1, combiner="argmax"
            )
            found = Tracked(places, float(most(x.shape[axis])), 1.0)
            return (
                self.mapped(found, Cast(Arg(0, DType.I64), self.base), found.bound, 1.0)
                if fits(self.base, found.bound, 1.0)
                else None
            )
        limit = min(2, int(dims.bounds(x.shape[axis])[0])) if kind == "top" else None
        return Tracked(self.b.sort(x.value, axis, self.draw(st.booleans()), limit)[0], x.bound, x.quantum)


Step = Callable[[Growth, Tracked], Tracked | None]
STEPS: tuple[Step, ...] = (
    Growth.unary, Growth.binary, Growth.binary, Growth.function, Growth.reduce, Growth.product, Growth.move,
    Growth.move, Growth.window, Growth.convert, Growth.order,
)  # fmt: skip


@st.composite
def random_graphs(draw: Draw) -> Case:
    """A graph of some ops, inputs for a few bindings of its symbols, and where a split run places what."""
    growth = Growth(draw)
    for _ in range(draw(st.integers(1, MOST_OPS))):
        growth.grow()
    kept = growth.values[-draw(st.integers(1, min(3, len(growth.values)))) :]
    graph = growth.b.build([t.value for t in kept])
    hurting = draw(st.sampled_from([0.0, 0.0, 0.05]))
    calls = []
    for _ in range(draw(st.integers(1, 3)) if growth.symbols else 1):
        binding = {
            s.name: s.multiple * draw(st.integers(-(-s.min // s.multiple), s.max // s.multiple))
            for s in growth.symbols
        }
        data = [exact(growth.rng, v.type.dtype, v.type.concrete(binding), _TOP) for v in graph.inputs]
        calls.append(
            tuple(
                sprinkled(growth.rng, a, hurting) if hurting and growth.base is not DType.F8 else a
                for a in data
            )
        )
    tolerances = tuple(Tolerance(absolute=t.error, zero_sign=False) for t in kept)
    pins = tuple((f"*_{i}", draw(st.sampled_from(["cpu", "vulkan"]))) for i in range(1, 6))
    return Case("graph", graph, tuple(calls), tolerances, pins=pins)


__all__ = ["Growth", "random_graphs"]
