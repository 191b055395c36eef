"""Products of matrices in memory by the tile registers of x86 CPUs (AMX), which hold 16 rows of 64 bytes.

==================  =========================================================================
tile_products       [index of x, row stride of x, index of the weights, index of the sums]; attrs x, weights:
                    memories of bf16, sums: SharedMemory of f32, rows, columns: tiles of `SIDE`, one or two,
                    steps: ints, added: bool. With ``depth = DEPTH * steps``, row ``r`` of x from its index
                    on, ``stride`` elements behind the one before, and column ``c`` of the weights, from
                    their index on as panels of `SIDE` columns of pairs::

                        sums[r * columns * SIDE + c] = sum over k below depth of x[r, k] * weights[k, c]
                        weights[k, c] at ((c // SIDE * depth + k // 2 * 2) * SIDE + c % SIDE * 2 + k % 2)

                    With ``added`` the products are added to what the sums are.
                    Sums round in any order, and subnormals may count as 0; CPU only.
==================  =========================================================================
"""

from __future__ import annotations

from mansard.codegen.kernel.builder import KernelBuilder
from mansard.codegen.kernel.ir import Binding, Inst, KValue, Memory, SharedMemory
from mansard.dtypes import DType

SIDE, DEPTH = 16, 32
"""Rows and columns of a tile of sums, and the products that an instruction adds to each."""
MOST = 2
"""Tiles of rows and of columns at a time: their sums and two tiles of each factor are all eight registers."""


def tile_products(
    b: KernelBuilder,
    x: tuple[Memory, KValue, KValue],
    weights: tuple[Memory, KValue],
    sums: tuple[SharedMemory, KValue],
    tiles: tuple[int, int],
    steps: int,
    *,
    added: bool = False,
) -> None:
    """The products of ``tiles`` of rows and columns, see the table: ``x``, ``weights`` and ``sums`` are
    memories with the operands of the instruction that belong to them."""
    attrs = {"x": x[0], "weights": weights[0], "sums": sums[0], "rows": tiles[0], "columns": tiles[1]}
    args = b.placed(*x[:2]), x[2], b.placed(*weights), b.placed(*sums)
    b.inst("tile_products", args, None, **attrs, steps=steps, added=added)


def broken_rule(inst: Inst) -> str | None:
    """Which rule of the table an instruction breaks; None: it keeps them."""
    x, weights, sums = (inst.attrs.get(name) for name in ("x", "weights", "sums"))
    for factor in (x, weights):
        if not isinstance(factor, (Binding, SharedMemory)) or factor.dtype is not DType.BF16:
            return "x and weights are no memories of bf16"
    rows, columns, steps = (inst.attrs.get(name, 0) for name in ("rows", "columns", "steps"))
    if not (1 <= rows <= MOST and 1 <= columns <= MOST and steps >= 1):
        return f"rows and columns are 1 to {MOST} tiles, and there is a step at least"
    size = rows * columns * SIDE * SIDE
    if not isinstance(sums, SharedMemory) or sums.dtype is not DType.F32 or sums.size < size:
        return f"the sums are no shared memory of {size} f32"
    if any(a.type.lanes != 1 or a.type.dtype not in (DType.I32, DType.I64) for a in inst.args):
        return "indices and the stride are scalar i32 or i64"
    return None
