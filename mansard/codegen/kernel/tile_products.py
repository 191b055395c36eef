"""Products of matrices in memory by tile registers of x86 CPUs (AMX), which hold 16 rows of up to 64 bytes.

==================  =========================================================================
tile_products       [index of x, row stride of x, index of the weights, index of the sums]; attrs x, weights:
                    memories of bf16, or of bytes of either sign, sums: SharedMemory of f32 or i32, rows,
                    columns: tiles of `SIDE`, one or two, depth: int, added: bool. Row ``r`` of x lies
                    ``stride`` elements behind the one before, and column ``c`` of the weights in panels of
                    `SIDE` columns of groups (``g`` is two for bf16, four for bytes)::

                        sums[r * columns * SIDE + c] = sum over k below depth of x[r, k] * weights[k, c]
                        weights[k, c] at ((c // SIDE * depth + k // g * g) * SIDE + c % SIDE * g + k % g)

                    With ``added`` the products are added to what the sums are. Sums of f32 round in any
                    order, and subnormals may count as 0. All of a kernel have the same `row_bytes`; CPU only.
==================  =========================================================================
"""

from __future__ import annotations

from mansard.codegen.kernel.builder import KernelBuilder
from mansard.codegen.kernel.ir import Binding, Inst, KValue, Memory, SharedMemory
from mansard.dtypes import DType

SIDE = 16
"""Rows and columns of a tile of sums."""
MOST = 2
"""Tiles of rows and of columns at a time: their sums and two tiles of each factor are all eight registers."""
ROW_BYTES = (64, 32)
"""Bytes of a row of x that an instruction may multiply."""
BYTES = (DType.I8, DType.U8)


def row_bytes(dtype: DType, depth: int) -> int:
    """Of a tile, the most of `ROW_BYTES` of which ``depth`` elements are a multiple; 0: of none."""
    return next((size for size in ROW_BYTES if depth * dtype.itemsize % size == 0), 0)


def tile_products(
    b: KernelBuilder,
    x: tuple[Memory, KValue, KValue],
    weights: tuple[Memory, KValue],
    sums: tuple[SharedMemory, KValue],
    tiles: tuple[int, int],
    depth: int,
    *,
    added: bool = False,
) -> None:
    """The products of ``tiles`` of rows and columns, see the table: ``x``, ``weights`` and ``sums`` are
    memories with the operands of the instruction that belong to them."""
    attrs = {"x": x[0], "weights": weights[0], "sums": sums[0], "rows": tiles[0], "columns": tiles[1]}
    args = b.placed(*x[:2]), x[2], b.placed(*weights), b.placed(*sums)
    b.inst("tile_products", args, None, **attrs, depth=depth, added=added)


def broken_rule(inst: Inst) -> str | None:
    """Which rule of the table an instruction breaks; None: it keeps them."""
    x, weights, sums = (inst.attrs.get(name) for name in ("x", "weights", "sums"))
    dtypes = [m.dtype for m in (x, weights) if isinstance(m, (Binding, SharedMemory))]
    if len(dtypes) < 2 or not (set(dtypes) == {DType.BF16} or set(dtypes) <= set(BYTES)):
        return "x and weights are no memories of bf16, or of bytes"
    rows, columns, depth = (inst.attrs.get(name, 0) for name in ("rows", "columns", "depth"))
    if not (1 <= rows <= MOST and 1 <= columns <= MOST and depth >= 1 and row_bytes(dtypes[0], depth)):
        return f"rows and columns are 1 to {MOST} tiles, and the depth is a multiple of {ROW_BYTES[-1]} bytes"
    size, summed = rows * columns * SIDE * SIDE, DType.I32 if dtypes[0] in BYTES else DType.F32
    if not isinstance(sums, SharedMemory) or sums.dtype is not summed or sums.size < size:
        return f"the sums are no shared memory of {size} {summed.value}"
    if any(a.type.lanes != 1 or a.type.dtype not in (DType.I32, DType.I64) for a in inst.args):
        return "indices and the stride are scalar i32 or i64"
    return None
