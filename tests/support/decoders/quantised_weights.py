"""Graphs of products with quantised weights, and the weights they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap, Linear, Value
from mansard.ir.quantised_weight import GroupFactor, QuantisedWeight, product
from mansard.ir.scalar import Apply, Arg, Cast, Scalar

F32 = DType.F32
CODES = {DType.I4: (-8, 8), DType.U4: (0, 16), DType.I8: (-128, 128), DType.U8: (0, 256)}


@dataclass(frozen=True)
class Form:
    """A weight (n, k): its codes, and what its groups of ``group`` have (0: nothing, no scales)."""

    n: int
    k: int
    group: int
    codes: DType = DType.I4
    x: DType = F32
    scale: DType = DType.BF16
    zeros: DType | None = None
    offsets: bool = False
    nested: bool = False
    """Scales of groups and scales of four groups, as Q4_K has."""
    scaled_x: bool = False
    """x has a scale for each group, too."""

    def __str__(self) -> str:
        return "-".join(str(v) for v in vars(self).values() if v not in (False, None))


@dataclass
class Weights:
    """The constants of a form; ``dense`` is what they stand for."""

    form: Form
    seed: int = 0
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng, f, a = np.random.default_rng(self.seed), self.form, self.arrays
        a["codes"] = rng.integers(*CODES[f.codes], (f.n, f.k)).astype(f.codes.numpy)
        if f.group:
            few = (f.n, f.k // f.group)
            a["scales"] = (rng.random(few) + 0.5).astype(f.scale.numpy)
            if f.nested:
                a["scales"] = rng.integers(1, 60, few).astype(np.uint8)
                a["outer"] = (rng.random((f.n, few[1] // 4)) + 0.5).astype(np.float16)
            if f.zeros:
                a["zeros"] = rng.integers(0, 8, few).astype(f.zeros.numpy)
            if f.offsets:
                a["offsets"] = rng.standard_normal(few).astype(f.scale.numpy)

    @property
    def dense(self) -> np.ndarray:
        a, f = {name: array.astype(np.float32) for name, array in self.arrays.items()}, self.form
        wide = a["codes"]
        if f.group:
            spread = {name: array.repeat(f.group, 1) for name, array in a.items() if name != "codes"}
            if f.nested:
                spread["outer"] = a["outer"].repeat(4 * f.group, 1)
            wide = (wide - spread.get("zeros", 0)) * spread["scales"] * spread.get("outer", 1)
            wide = wide + spread.get("offsets", 0)
        return wide

    def add_to(self, b: GraphBuilder) -> QuantisedWeight:
        def constant(name: str) -> Value:
            array = self.arrays[name]
            dtype = {"codes": self.form.codes, "zeros": self.form.zeros}.get(name)
            from mansard.dtypes import from_numpy

            return b.constant(name, Constant.of(array, name), array.shape, dtype or from_numpy(array.dtype))

        f = self.form
        groups = {name: GroupFactor(constant(name), f.group) for name in self.arrays if name != "codes"}
        scales = [groups["scales"]] if f.group else []
        if f.nested:
            scales.insert(0, GroupFactor(groups["outer"].value, 4 * f.group))
        offsets = (groups["offsets"],) if f.offsets else ()
        return QuantisedWeight(constant("codes"), tuple(scales), groups.get("zeros"), offsets)


def graph_of(
    form: Form, rows: DimLike, seed: int = 0, *, shared: bool = False, weights: Weights | None = None
) -> Graph:
    """x (rows, k) times the weight, in f32; scales of x are a second input. With ``shared`` something
    else reads the codes, too."""
    b = GraphBuilder()
    x = b.input("x", (rows, form.k), form.x)
    read = IndexMap((Linear.dim(0), Linear.dim(2)))
    operands = [(x, read, 1)]
    factor: Scalar = Arg(0, form.x) if form.x is F32 else Cast(Arg(0, form.x), F32)
    if form.scaled_x:
        operands.append((b.input("s", (rows, form.k // form.group), F32), read, form.group))
        factor = Apply("mul", (factor, Arg(1, F32)), F32)
    weight = (weights or Weights(form, seed)).add_to(b)
    out = b.value("y", (rows, form.n), F32)
    results = [b.append(product(weight, operands, factor, (rows, form.n), Linear.dim(1), out))]
    if shared:
        other: Scalar = Arg(1, form.x) if form.x is F32 else Cast(Arg(1, form.x), F32)
        body = Apply("add", (Cast(Arg(0, form.codes), F32), other), F32)
        first = IndexMap((Linear(), Linear.dim(0)))
        results.append(b.generic([weight.codes, x], [first, first], (form.k,), body))
    return b.build(results)


def inputs_of(form: Form, rows: int, seed: int = 0) -> Sequence[np.ndarray]:
    rng = np.random.default_rng(seed + 1)
    x = rng.integers(-127, 128, (rows, form.k)) if form.x.is_int else rng.standard_normal((rows, form.k))
    scales = [rng.random((rows, form.k // form.group)).astype(np.float32)] if form.scaled_x else []
    return [x.astype(form.x.numpy), *scales]
