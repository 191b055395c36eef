"""Conversions between element types."""

from __future__ import annotations

from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.table import rule
from mansard.ir.types import Linear


@rule("stablehlo.convert")
def convert(g: StableHloImporter, node: Node) -> Tensor:
    """Conversion; floats to integers are truncated and limited to the type, NaN gives 0."""
    x, dtype = node.tensor(0), node.dtype()
    if dtype is x.dtype:
        return x
    if x.splat is not None and (dtype.is_float or not x.dtype.is_float):
        return g.splat(x.shape, bool(x.splat) if dtype is DType.BOOL else x.splat, dtype)
    if dtype is DType.BOOL:
        return g.map(lambda e: e != 0, x)
    if not x.dtype.is_float or dtype.is_float:
        return g.ramp_like(g.cast(x, dtype), x)
    return g.map(lambda e: saturated(e, dtype), x)


def saturated(e: Num, dtype: DType) -> Num:
    """A float as an integer of a type, limited to what the type holds."""
    e = e.cast(DType.F32) if e.dtype.bits < 32 else e
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    high = low + (1 << dtype.bits) - 1
    inside = (e > float(low)) & (e < float(high))
    whole = inside.select(e, 0.0).cast(dtype)
    limited = (e >= float(high)).select(
        whole.number(high), (e <= float(low)).select(whole.number(low), whole)
    )
    return limited


@rule("stablehlo.bitcast_convert")
def bitcast_convert(g: StableHloImporter, node: Node) -> Tensor:
    """The same bits as another type; of another width, with a dim more or less at the end."""
    x, dtype = node.tensor(0), node.dtype()
    if dtype is x.dtype:
        return x
    if DType.BOOL in (dtype, x.dtype):
        raise node.fail("the bits of a bool")
    if dtype.bits == x.dtype.bits:
        return g.map(lambda e: e.bitcast(dtype), x)
    before, after = _unsigned(x.dtype.bits), _unsigned(dtype.bits)
    if dtype.bits < x.dtype.bits:
        return _split(g, x, dtype, before, after)
    return _joined(g, x, dtype, before, after)


def _unsigned(bits: int) -> DType:
    return {8: DType.U8, 16: DType.U16, 32: DType.U32, 64: DType.U64}[bits]


def _as(e: Num, dtype: DType) -> Num:
    return e if e.dtype is dtype else e.bitcast(dtype)


def _split(g: StableHloImporter, x: Tensor, dtype: DType, before: DType, after: DType) -> Tensor:
    parts = [
        g.map(lambda e, s=n * dtype.bits: _as(_as(e, before).binary("shr", s).cast(after), dtype), x)
        for n in range(x.dtype.bits // dtype.bits)
    ]
    return g.stack(parts, x.rank)


def _joined(g: StableHloImporter, x: Tensor, dtype: DType, before: DType, after: DType) -> Tensor:
    body = g.body(x.shape[:-1])
    lead = [Linear.dim(i) for i in range(x.rank - 1)]
    total: Num | None = None
    for n in range(dtype.bits // x.dtype.bits):
        element = _as(g.read(body, x, [*lead, Linear((), n)]), before).cast(after)
        term = element.binary("shl", n * x.dtype.bits)
        total = term if total is None else total | term
    assert total is not None
    return g.finish(body, _as(total, dtype))


@rule("stablehlo.reduce_precision")
def reduce_precision(g: StableHloImporter, node: Node) -> Tensor:
    """Rounded to a format of fewer bits, where that is f16 or bf16."""
    x = node.tensor(0)
    widths = (node.integer("exponent_bits"), node.integer("mantissa_bits"))
    formats = {(8, 7): DType.BF16, (5, 10): DType.F16, (8, 23): DType.F32, (11, 52): DType.F64}
    narrow = formats.get(widths)
    if narrow is None:
        raise node.fail(f"a format of {widths[0]} exponent and {widths[1]} mantissa bits")
    if narrow.bits >= x.dtype.bits:
        return x
    return g.map(lambda e: e.cast(narrow).cast(x.dtype), x)


@rule("stablehlo.get_dimension_size")
def dimension_size(g: StableHloImporter, node: Node) -> Tensor:
    """A size, as a number that is known."""
    return g.dim_content([node.tensor(0).shape[node.integer("dimension")]], (), DType.I32)


@rule("stablehlo.iota", "stablehlo.dynamic_iota")
def iota(g: StableHloImporter, node: Node) -> Tensor:
    """The index along a dim."""
    shape = g.result_shape(node, 0) if node.name.endswith("dynamic_iota") else node.static_shape()
    axis, dtype = node.integer("iota_dimension"), node.dtype()
    known = g.small_iota(shape, axis, dtype)
    if known is not None:
        return known
    body = g.body(shape)
    place = Num(body.space, body.space.from_linear(Linear.dim(axis)))
    return g.ramp(g.finish(body, place.cast(dtype)), axis)


@rule("stablehlo.constant")
def constant(g: StableHloImporter, node: Node) -> Tensor:
    """The attribute's numbers."""
    return g.constant_tensor(node.attribute("value"), "weight")
